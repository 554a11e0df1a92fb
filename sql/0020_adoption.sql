-- oldest-binary: 0.2.0
-- Work that ran before anybody asked for it, adopted as a lease.

ALTER TABLE decision ADD COLUMN adopted_ns bigint;
COMMENT ON COLUMN decision.adopted_ns IS 'when work that ran already became this lease; NULL: it was asked for before it ran';
