-- oldest-binary: 0.2.0
-- Epochs of the agents that act for a cluster's scheduler: a request of an agent that is not the leader any more changes nothing.

CREATE TABLE agent_leader (
	cluster text PRIMARY KEY CHECK (cluster <> ''),
	epoch bigint NOT NULL CHECK (epoch > 0),
	led_by text NOT NULL CHECK (led_by <> ''),
	since_ns bigint NOT NULL CHECK (since_ns >= 0)
);
COMMENT ON TABLE agent_leader IS 'The largest epoch that an agent of each cluster has had. It is read and written under the lock of quota_book.';
COMMENT ON COLUMN agent_leader.led_by IS 'the token that brought this epoch; since_ns: when, by the time of the book';
CREATE TRIGGER agent_leader_stays BEFORE DELETE OR TRUNCATE ON agent_leader FOR EACH STATEMENT EXECUTE FUNCTION quota_never_goes_back();
CREATE TRIGGER agent_leader_goes_on BEFORE UPDATE ON agent_leader FOR EACH ROW WHEN (NEW.cluster <> OLD.cluster OR NEW.epoch <= OLD.epoch)
	EXECUTE FUNCTION quota_never_goes_back();
