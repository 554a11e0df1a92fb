-- oldest-binary: 0.1.0
-- Groups of users and labels of pods, and rules that look at them.

-- "app=web,team=ml", as wire format and policy write labels: sorted by key, and neither = nor , can stand in a key or a value.
CREATE FUNCTION labels_of(p_text text) RETURNS jsonb
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN (SELECT coalesce(jsonb_object_agg(split_part(l, '=', 1), split_part(l, '=', 2)), '{}')
		FROM unnest(string_to_array(p_text, ',')) AS l);
COMMENT ON FUNCTION labels_of IS 'an object of texts from key=value,key=value; empty for no text';

CREATE FUNCTION labels_text(p_labels jsonb) RETURNS text
	LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
	RETURN (SELECT coalesce(string_agg(key || '=' || value, ',' ORDER BY key COLLATE "C"), '') FROM jsonb_each_text(p_labels));
COMMENT ON FUNCTION labels_text IS 'the text that labels_of() reads';

ALTER TABLE holder
	ADD COLUMN group_name text NOT NULL DEFAULT '',
	ADD COLUMN labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object');
COMMENT ON COLUMN holder.group_name IS 'primary group of the user of a job or a host; empty: not known';
COMMENT ON COLUMN holder.labels IS 'the pod''s labels that its exporter was told to read: texts by key. A pod whose labels change is a new holder';
COMMENT ON COLUMN holder.identity IS 'SHA-256 of cluster and all the fields: the same workload on two nodes is one holder. '
	'Group and labels count where there are any, so holders from before they were known keep theirs';

ALTER TABLE attribution_rule
	ADD COLUMN group_name text,
	ADD COLUMN labels jsonb CHECK (jsonb_typeof(labels) = 'object' AND labels <> '{}'),
	DROP CONSTRAINT attribution_rule_check,
	ADD CONSTRAINT rule_has_a_pattern CHECK (num_nonnulls(cluster, namespace, slurm_account, user_name, group_name, labels) > 0);
COMMENT ON COLUMN attribution_rule.labels IS 'patterns by key; a holder must have all of the keys';
