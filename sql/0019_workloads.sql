-- oldest-binary: 0.2.0
-- Several workloads of one lease: the pods of a gang, the components of a heterogeneous job, a job that was requeued.

ALTER TABLE decision ADD COLUMN workloads text[];
COMMENT ON COLUMN decision.workloads IS 'further workloads that a lease is seen by, beside workload_*: UIDs of pods, claim:UID, slurm:ID or slurm:ID.RESTARTS';
