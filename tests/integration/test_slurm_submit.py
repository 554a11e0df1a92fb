"""hooks/slurm/job_submit.lua in plain Lua 5.1: what it asks the agent, what it makes of answers, and what it does without one."""

import os
import random
import shutil
import tempfile
import time
import unittest

from tests.support.scheduler.submit_host import StandIn, SubmitHost

ACCESS_DENIED, ACCOUNTING_POLICY = 2002, 2050
INFINITE = 4294967295
WAITS = "tollgate wait.0 queue: behind 3 jobs"
RUNS = "tollgate run.0 admitted: 2 GPUs of physics"


class Hook(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tollgate-submit-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.path = os.path.join(self.dir, "agent.sock")

    def agent(self, answer=b"pass\n"):
        return self.enterContext(StandIn(self.path, answer))

    def host(self, **options):
        """With time enough for an answer on a busy machine, unless the test says otherwise."""
        return self.enterContext(SubmitHost(self.path, **{"timeout_ms": 60_000, **options}))


class Questions(Hook):
    def test_every_way_to_ask_for_gpus_is_asked_about_and_nothing_else(self):
        agent, host = self.agent(), self.host()
        asked = {
            "--gpus": {"tres_per_job": "gres:gpu:2"},
            "--gpus with a type": {"tres_per_job": "gres:gpu:a100:2"},
            "--gpus-per-node": {"tres_per_node": "gres:gpu:a100:1"},
            "--gpus-per-task": {"tres_per_task": "gres:gpu:2"},
            "--gpus-per-socket": {"tres_per_socket": "gres:gpu:1"},
            "--gres with two types, one of MIG": {"tres_per_node": "gres:gpu:a100:1,gres:gpu:1g.10gb:2"},
            "as newer versions write it": {"tres_per_node": "gres/gpu:2"},
            "per task with processors": {"tres_per_task": "cpu=4,gres/gpu=1"},
            "mps": {"tres_per_node": "gres:mps:50"},
            "shard": {"tres_per_node": "gres:shard:2"},
            "the old field alone": {"gres": "gpu:1"},
            "--exclusive": {"shared": 0},
            "a partition with whole nodes": {"partition": "whole"},
            "--core-spec": {"core_spec": 0},
            "--ntasks-per-gpu": {"ntasks_per_tres": 2, "num_tasks": 8},
            "as Slurm's own parser reads it": {"tres_per_job": "gresgpu:8"},
            "with letters before it": {"tres_per_node": "xgres/gpu:8"},
            "a type of this name": {"tres_per_node": "gres/gpu:gres:8"},
        }
        for name, fields in asked.items():
            with self.subTest(name):
                before = len(agent.asked)
                self.assertEqual(host.submit(**fields)["code"], 0)
                self.assertEqual(len(agent.asked), before + 1)
                for field, value in fields.items():
                    if field.startswith("tres"):
                        self.assertEqual(agent.last()[field], value)
                self.assertEqual(agent.last()["exclusive"], "1" if {"shared", "partition", "core_spec"} & set(fields) else "0")
        before = len(agent.asked)
        for fields in ({}, {"tres_per_node": "gres:nvme:1"}, {"tres_per_node": "gres:gpuless:1"}, {"tres_per_task": "cpu=4"}, {"shared": 1}, {"partition": "gpu"}):
            self.assertEqual(host.submit(**fields), {"code": 0, "said": "", "logged": ""})
        self.assertEqual(len(agent.asked), before)

    def test_a_question_has_what_the_agent_needs_and_no_unset_values(self):
        agent, host = self.agent(), self.host()
        host.submit(tres_per_job="gres:gpu:2")
        self.assertEqual(agent.asked[-1], ("submit", {
            "tres_per_job": "gres:gpu:2", "user": "alice", "uid": "1000", "submit_uid": "1000", "partition": "gpu", "name": "wrap", "cpus": "1", "exclusive": "0",
            "interactive": "0", "immediate": "0", "priority_hold": "0", "script": "1"}))
        host.submit(uid=0, tres_per_node="gres:gpu:2", account="wsA", qos="high", begin_time=1794976363, time_limit=10, min_nodes=2, max_nodes=4, num_tasks=4,
                    features="a100&nvlink", array_inx="0-9%3", het_job_offset=0, requeue=0, priority=0, comment="of mine\t=%\n", min_mem_per_node=100, script=False)
        self.assertEqual(agent.last(), {
            "account": "wsA", "qos": "high", "begin": "1794976363", "time_limit_s": "600", "min_nodes": "2", "max_nodes": "4", "tasks": "4",
            "features": "a100&nvlink", "tres_per_node": "gres:gpu:2", "user": "alice", "uid": "1000", "submit_uid": "0", "partition": "gpu", "name": "wrap",
            "array": "0-9%3", "het_index": "0", "cpus": "1", "memory_mb": "100", "exclusive": "0", "requeue": "0", "interactive": "1", "immediate": "0",
            "priority_hold": "1", "comment": "of mine\t=%\n", "script": "0"})
        self.assertRegex(agent.raw[-1], rb"^[A-Za-z0-9._:/,@+\-%=_\t]+\n$")

    def test_later_components_of_a_batch_job_are_no_interactive_ones(self):
        agent, host = self.agent(), self.host()
        host.submit(tres_per_job="gres:gpu:2", het_job_offset=0)
        host.submit(tres_per_job="gres:gpu:1", het_job_offset=1, script=False)
        self.assertEqual((agent.last()["interactive"], agent.last()["script"]), ("0", "0"))
        host.submit(tres_per_job="gres:gpu:2", het_job_offset=0, script=False)
        host.submit(tres_per_job="gres:gpu:1", het_job_offset=1, script=False)
        self.assertEqual(agent.last()["interactive"], "1")

    def test_the_signal_of_a_script_is_passed_on(self):
        agent, host = self.agent(), self.host()
        for line, expected in {
            "#SBATCH --signal=B:USR1@60": ("10", "1"), "#SBATCH --signal=USR2": ("12", "0"), "#SBATCH -N1 --signal SIGTERM@300": ("15", "0"),
            "#SBATCH --signal=R:10@60": ("10", "0"), "#SBATCH --signal=RB:23": ("23", "1"), "#SBATCH --signal=nonsense": (None, None), "# --signal=USR1": (None, None),
            "echo\n#SBATCH --signal=USR1": (None, None),
        }.items():
            with self.subTest(line):
                host.submit(tres_per_job="gres:gpu:2", script=f"#!/bin/sh\n# text\n\n{line}\nsleep 1\n")
                self.assertEqual((agent.last().get("signal"), agent.last().get("signal_batch")), expected)

    def test_long_texts_are_cut_and_a_question_that_stays_too_long_is_refused(self):
        agent, host = self.agent(), self.host()
        host.submit(tres_per_job="gres:gpu:1", comment="x" * 100_000, name="y" * 5000, array_inx=",".join(str(i) for i in range(10_000)))
        self.assertEqual((len(agent.last()["comment"]), len(agent.last()["name"])), (4096, 4096))
        self.assertRegex(agent.last()["array"], r"^0,1,2,.*[0-9]$")
        done = host.submit(tres_per_job="gres:gpu:1", features="&" * 40_000)
        self.assertEqual(done["code"], ACCOUNTING_POLICY)
        self.assertRegex(done["said"], "the request has 1[0-9]{5} bytes; at most 65536")

    def test_the_will_run_test_of_root_passes_and_of_others_does_not(self):
        agent, host = self.agent(b"hold\n"), self.host()
        self.assertNotIn("set_priority", host.submit(uid=0, tres_per_job="gres:gpu:1", comment="tollgate:will-run"))
        self.assertEqual(host.submit(tres_per_job="gres:gpu:1", comment="tollgate:will-run")["set_priority"], 0)
        self.assertEqual(len(agent.asked), 1)


class Answers(Hook):
    def test_pass_hold_and_refuse(self):
        agent, host = self.agent(), self.host()
        agent.answer = b"pass\tstarts%20at%20once\n"
        self.assertEqual(host.submit(tres_per_job="gres:gpu:1"), {"code": 0, "said": "starts at once", "logged": ""})
        agent.answer = b"hold\tqueued\tadmin_comment=tollgate%20wait.0%20queue:%20behind%203%20jobs\n"
        self.assertEqual(host.submit(tres_per_job="gres:gpu:1"), {"code": 0, "said": "queued", "logged": "", "set_priority": 0, "set_admin_comment": WAITS})
        agent.answer = b"refuse\tlimit%20of%20physics:%204%20GPUs,%20wanted%208%0Asee%20tollgate%20why\n"
        done = host.submit(tres_per_job="gres:gpu:8")
        self.assertEqual((done["code"], done["said"]), (ACCOUNTING_POLICY, "limit of physics: 4 GPUs, wanted 8\nsee tollgate why"))
        self.assertNotIn("set_priority", done)

    def test_an_untyped_request_is_typed_on_the_agents_word(self):
        agent, host = self.agent(b"hold\t\tset:tres_per_node=gres:gpu:a100:2\tadmin_comment=tollgate%20wait.0\n"), self.host()
        done = host.submit(tres_per_node="gres:gpu:2")
        self.assertEqual((done["set_tres_per_node"], done["set_priority"], done["said"]), ("gres:gpu:a100:2", 0, ""))
        self.assertEqual(len(agent.asked), 1)

    def test_an_answer_may_set_nothing_but_the_gpu_request(self):
        agent, host = self.agent(), self.host(pause_s=0)
        for harm in ("set:account=other", "set:user_id=0", "set:script=%23!/bin/sh", "set:tres_per_node=", "set:tres_per_node=gres:nvme:1",
                     "set:tres_per_node=gres:gpu:1%0A", "set:tres_per_node=gres:gpu:" + "1" * 2000):
            agent.answer = f"pass\t\t{harm}\n".encode()
            done = host.submit(tres_per_node="gres:gpu:2")
            self.assertIn("an answer that is none", done["logged"], harm)
            self.assertEqual({name for name in done if name.startswith("set_")}, {"set_priority", "set_admin_comment"}, harm)

    def test_a_users_own_mark_is_removed(self):
        agent, host = self.agent(), self.host()
        self.assertEqual(host.submit(tres_per_job="gres:gpu:1", admin_comment=RUNS)["set_admin_comment"], "")
        self.assertEqual(host.submit(admin_comment=RUNS)["set_admin_comment"], "")
        self.assertNotIn("set_admin_comment", host.submit(admin_comment="of the site"))
        self.assertNotIn("set_admin_comment", host.submit(uid=0, admin_comment=RUNS))
        self.assertEqual(len(agent.asked), 1)


class Silence(Hook):
    def test_without_an_agent_jobs_are_held_with_a_mark_and_jobs_without_gpus_pass(self):
        host = self.host()
        done = host.submit(tres_per_job="gres:gpu:1", priority=0, script="#!/bin/sh\n#SBATCH --signal=B:USR1@60\n")
        self.assertEqual((done["code"], done["set_priority"]), (0, 0))
        self.assertEqual(done["set_admin_comment"], "tollgate wait.0ub10 agent: the quota agent did not answer at submission")
        self.assertIn("not asked for 10 s", done["logged"])
        self.assertEqual(host.submit(tres_per_job="gres:gpu:1")["set_admin_comment"], "tollgate wait.0 agent: the quota agent did not answer at submission")
        self.assertEqual(host.submit(), {"code": 0, "said": "", "logged": ""})

    def test_the_option_says_what_happens_without_an_agent(self):
        done = self.host(agent_down="pass").submit(tres_per_job="gres:gpu:1")
        self.assertEqual((done["code"], done["said"], "set_priority" in done), (0, "", False))
        done = self.host(agent_down="refuse").submit(tres_per_job="gres:gpu:1")
        self.assertEqual((done["code"], done["said"]), (ACCOUNTING_POLICY, "Tollgate: the quota agent does not answer; jobs with GPUs are not taken meanwhile"))

    def test_wrong_options_are_named(self):
        for options, words in (({"agent_down": "stop"}, 'agent_down is "stop"; it may be hold, pass or refuse'), ({"sokcet": "x"}, "sokcet: no such option")):
            with self.assertRaisesRegex(AssertionError, words):
                self.host(**options).submit()

    def test_a_silent_agent_is_not_asked_again_until_the_pause_ended(self):
        agent = self.agent(lambda connection, verb, fields: None)
        patient, impatient = self.host(pause_s=3600), self.host(pause_s=1)
        for host in (patient, impatient):
            self.assertIn("an answer without its end", host.submit(tres_per_job="gres:gpu:1")["logged"])
        agent.answer = b"pass\n"
        for _ in range(5):
            self.assertEqual(patient.submit(tres_per_job="gres:gpu:1")["set_priority"], 0)
        self.assertEqual(len(agent.asked), 2)
        time.sleep(1.1)
        done = impatient.submit(tres_per_job="gres:gpu:1")
        self.assertEqual(len(agent.asked), 3)
        self.assertNotIn("set_priority", done)
        self.assertIn("answers again", done["logged"])

    def test_an_agent_that_answers_byte_by_byte_has_its_time_in_all(self):
        def drip(connection, verb, fields):
            for byte in b"pass\t" + b"x" * 200 + b"\n":
                connection.sendall(bytes([byte]))
                time.sleep(0.01)

        self.agent(drip)
        done = self.host(timeout_ms=100).submit(tres_per_job="gres:gpu:1")
        self.assertIn("timeout", done["logged"])
        self.assertEqual(done["set_priority"], 0)

    def test_no_answer_breaks_the_hook_or_starts_a_job(self):
        """Whatever is not a whole `pass` holds the job: rubbish, half lines, long lines, other verbs, answers cut anywhere."""
        seed = int(os.environ.get("TOLLGATE_PROP_SEED") or str(random.SystemRandom().randrange(2**32)), 0)
        dice = random.Random(seed)
        print(f"seed {seed}")
        agent, host = self.agent(), self.host(pause_s=0)
        good = b"hold\tit%20waits\tset:tres_per_node=gres:gpu:a100:2\tadmin_comment=tollgate%20wait.0%20queue\n"
        for turn in range(400):
            kind = turn % 5
            if kind == 0:
                agent.answer = dice.randbytes(dice.randrange(300))
            elif kind == 1:
                agent.answer = good[: dice.randrange(len(good))]
            elif kind == 2:
                at = dice.randrange(len(good))
                agent.answer = good[:at] + dice.randbytes(1) + good[at + 1 :]
            elif kind == 3:
                agent.answer = b"pass\t" + b"x" * dice.choice((65531, 65536, 70000, 200_000)) + dice.choice((b"", b"\n"))
            else:
                agent.answer = dice.choice((b"ok\n", b"PASS\n", b"pass \n", b"\n", b"pass", b"start\n", b"bounce\tno\n", b"error\tno\n", b"pass\tx\ty\n"))
            sent = agent.answer
            done = host.submit(tres_per_node="gres:gpu:2")
            said = f"seed {seed}, turn {turn}: {sent[:200]!r} gave {done}"
            line, end, _ = sent.partition(b"\n")
            words = line.split(b"\t")
            if end and len(line) <= 65536 and words[0] in (b"pass", b"refuse"):
                continue  # it says so
            self.assertEqual((done["code"], done.get("set_priority")), (0, 0), said)
            self.assertIn(done.get("set_tres_per_node"), (None, "gres:gpu:a100:2") if kind != 2 else (done.get("set_tres_per_node"),), said)


class Changes(Hook):
    def record(self, mark=WAITS, **more):
        return {"job_id": 7, "admin_comment": mark, "account": "physics", "partition": "gpu", "job_state": 0, "priority": 0, "array_job_id": 0, "het_job_id": 0, **more}

    def test_a_users_change_is_asked_about_with_what_changes(self):
        agent, host = self.agent(b"refuse\tno\n"), self.host()
        for fields, expected in (
            ({"priority": INFINITE}, {"hold": "0"}), ({"priority": 0}, {"hold": "1"}), ({"account": "other"}, {"account": "other"}),
            ({"partition": "whole"}, {"partition": "whole", "exclusive": "1"}), ({"qos": "high"}, {"qos": "high"}), ({"begin_time": 99}, {"begin": "99"}),
            ({"tres_per_node": "gres:gpu:8"}, {"tres_per_node": "gres:gpu:8"}), ({"min_nodes": 2}, {"min_nodes": "2"}), ({"time_limit": 5}, {"time_limit_s": "300"}),
            ({"features": "h100"}, {"features": "h100"}), ({"time_limit": INFINITE}, {"time_unlimited": "1"}), ({"sockets_per_node": 4}, {"sockets_per_node": "4"}),
            ({"req_nodes": "gn7"}, {"nodes": "gn7"}), ({"reservation": "night"}, {"reservation": "night"}), ({"ntasks_per_tres": 2}, {"tasks_per_gpu": "2"}),
        ):
            with self.subTest(fields):
                done = host.modify(self.record(), **fields)
                self.assertEqual(done["code"], ACCESS_DENIED)
                self.assertIn("change of JobId=7 by uid 1000 refused: no", done["logged"])
                self.assertEqual(agent.asked[-1], ("modify", {**expected, "job": "7", "uid": "1000", "was_account": "physics", "was_partition": "gpu", "state": "pending",
                                                              "admin_comment": WAITS}))
        agent.answer = b"pass\n"
        self.assertEqual(host.modify(self.record(array_job_id=5, array_task_id=3), priority=INFINITE)["code"], 0)
        self.assertEqual((agent.last()["array_job"], agent.last()["array_task"]), ("5", "3"))

    def test_what_needs_no_question_is_not_asked(self):
        agent, host = self.agent(b"refuse\tno\n"), self.host()
        self.assertEqual(host.modify(self.record(), uid=0, priority=INFINITE)["code"], 0)
        self.assertEqual(host.modify(self.record(mark=""), priority=INFINITE)["code"], 0)
        self.assertEqual(host.modify(self.record(mark="of the site"), account="other")["code"], 0)
        self.assertEqual(host.modify(self.record(), comment="mine")["code"], 0)
        self.assertEqual(host.modify(self.record(mark=""), nice=2147483649)["code"], 0)
        self.assertEqual(agent.asked, [])

    def test_gpus_that_a_job_without_a_mark_would_get_are_asked_about(self):
        """Submitted without GPUs and held by its user, it would get them by a change, and start by the user's own release."""
        agent, host = self.agent(b"refuse\tno\n"), self.host()
        changes = ({"tres_per_job": "gres:gpu:8"}, {"gres": "gpu:8"}, {"ntasks_per_tres": 1}, {"partition": "whole"}, {"core_spec": 1})
        for n, fields in enumerate(changes, 1):
            self.assertEqual(host.modify(self.record(mark=""), **fields)["code"], ACCESS_DENIED, fields)
            self.assertEqual(len(agent.asked), n)
            self.assertNotIn("admin_comment", agent.last())
        agent.answer = b"pass\n"
        self.assertEqual(host.modify(self.record(mark=""), partition="whole")["code"], 0)

    def test_a_nice_value_does_not_lift_our_hold(self):
        agent, host = self.agent(), self.host()
        self.assertEqual(host.modify(self.record(), nice=2147483649)["code"], ACCESS_DENIED)
        self.assertEqual(host.modify(self.record(RUNS), nice=2147483649)["code"], 0)
        self.assertEqual(agent.asked, [])

    def test_without_an_agent_our_hold_stays_and_what_was_admitted_stays_what_it_was(self):
        host = self.host()
        for mark in (WAITS, "tollgate back.0 changed", "tollgate drain.1 reclaimed"):
            for fields in ({"priority": INFINITE}, {"priority": 0}):
                self.assertEqual(host.modify(self.record(mark), **fields)["code"], ACCESS_DENIED, (mark, fields))
        for fields in ({"account": "other"}, {"tres_per_job": "gres:gpu:8"}, {"partition": "whole"}, {"begin_time": 99}):
            self.assertEqual(host.modify(self.record(WAITS), **fields)["code"], 0, "it waits, and is asked for anew")
            self.assertEqual(host.modify(self.record(RUNS), **fields)["code"], ACCESS_DENIED, fields)
            self.assertEqual(host.modify(self.record(mark=""), **fields)["code"], ACCESS_DENIED if "account" not in fields and "begin_time" not in fields else 0, fields)
        self.assertEqual(host.modify(self.record(RUNS), priority=0)["code"], 0, "the hold is the user's own")
        self.assertEqual(host.modify(self.record(RUNS, job_state=1), priority=INFINITE)["code"], 0)
        self.assertEqual(host.modify(self.record(RUNS), priority=INFINITE)["code"], ACCESS_DENIED, "it may have been requeued: its second start is a new request")

    def test_without_an_agent_components_with_gpus_are_not_taken(self):
        host = self.host()
        self.assertEqual(host.submit(het_job_offset=1, tres_per_job="gres:gpu:2")["code"], ACCOUNTING_POLICY)
        self.assertEqual(host.submit(het_job_offset=1)["code"], 0)


if __name__ == "__main__":
    unittest.main()
