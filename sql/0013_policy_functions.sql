-- oldest-binary: 0.2.0
-- Functions of the policy: amounts as people write them, and price rows that never change.

-- One whole GPU is 5040 units.
CREATE FUNCTION quantity_text(units bigint, profile text, instances bigint) RETURNS text
	LANGUAGE sql IMMUTABLE PARALLEL SAFE
	RETURN CASE WHEN profile <> '' THEN instances || 'x' || profile WHEN units IS NULL THEN 'none'
		WHEN mod(units, 5040) = 0 THEN (units / 5040)::text ELSE units / gcd(units, 5040) || '/' || 5040 / gcd(units, 5040) END;
COMMENT ON FUNCTION quantity_text IS 'as people write it in a policy: 4, 3/7, 2x1g.10gb, none';

CREATE FUNCTION tenant_limit_text(p_tenant integer, p_kind text, p_at timestamptz) RETURNS text
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT coalesce(string_agg(CASE WHEN l.model = '' THEN '' ELSE l.model || ': ' END || quantity_text(l.units, l.profile, l.instances),
			', ' ORDER BY l.model), '')
		FROM tenant_limit l WHERE l.tenant_id = p_tenant AND l.kind = p_kind AND l.effective @> p_at;
	END;
COMMENT ON FUNCTION tenant_limit_text IS 'a limit at an hour, as people write it; empty: none is declared';

CREATE FUNCTION workspace_limit_text(p_workspace integer, p_kind text, p_at timestamptz) RETURNS text
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT coalesce(string_agg(CASE WHEN l.model = '' THEN '' ELSE l.model || ': ' END || quantity_text(l.units, l.profile, l.instances),
			', ' ORDER BY l.model), '')
		FROM workspace_limit l WHERE l.workspace_id = p_workspace AND l.kind = p_kind AND l.effective @> p_at;
	END;
COMMENT ON FUNCTION workspace_limit_text IS 'a limit at an hour, as people write it; empty: none is declared';

CREATE FUNCTION reservation_text(p_workspace integer, p_shared boolean, p_at timestamptz) RETURNS text
	LANGUAGE sql STABLE PARALLEL SAFE
	BEGIN ATOMIC
		SELECT coalesce(string_agg(r.model || ': ' || quantity_text(r.units, r.profile, r.instances), ', ' ORDER BY r.model, r.profile), '')
		FROM reservation r WHERE r.workspace_id = p_workspace AND r.shared = p_shared AND r.effective @> p_at;
	END;
COMMENT ON FUNCTION reservation_text IS 'what is reserved at an hour, as people write it';

-- The rows of a price book never change, because they have priced lines.
CREATE FUNCTION price_rows_are_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'the prices of a book are not changed: apply a policy with a new version'
		USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER price_book_is_final BEFORE UPDATE OF version, currency, sha256, lender_ratio, shared_idle, platform_cost OR DELETE ON price_book
	FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
CREATE TRIGGER price_item_is_final BEFORE UPDATE OR DELETE ON price_item FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
CREATE TRIGGER price_discount_is_final BEFORE UPDATE OR DELETE ON price_discount FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
CREATE TRIGGER price_site_is_final BEFORE UPDATE OR DELETE ON price_site FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
CREATE TRIGGER price_weight_is_final BEFORE UPDATE OR DELETE ON price_weight FOR EACH ROW EXECUTE FUNCTION price_rows_are_final();
