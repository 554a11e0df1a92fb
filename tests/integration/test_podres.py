"""The exporter's kubelet client against a real gRPC server: sound answers, restarts, and everything that can go wrong."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

import grpc

from tests.support.daemons.stack import program, wait_for
from tests.support.scheduler.kubelet import Kubelet, pod

# also: san tsan


class Client:
    """podres_tool: what holds, whenever one asks."""

    def __init__(self, *arguments):
        self.child = subprocess.Popen([program("tests/podres_tool"), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self):
        """(how the last question went, what holds)"""
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        state, holds = self.child.stdout.readline().rstrip("\n"), []
        while (line := self.child.stdout.readline()) != "\n":
            if not line:
                raise AssertionError("podres_tool ended")
            holds.append(line.rstrip("\n"))
        return state, holds

    def wait(self, what, state, holds):
        """Until it says so; state is a pattern."""
        def said():
            now = self.ask()
            return re.search(state, now[0]) and now[1] == holds

        try:
            wait_for(what, said)
        except AssertionError as e:
            raise AssertionError(f"{e}: {self.ask()}") from None

    def close(self):
        self.child.stdin.close()
        code = self.child.wait(60)
        self.child.stdout.close()
        if code != 0:
            raise AssertionError(f"podres_tool ended with {code}")


class Answers(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tollgate-podres-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.pods, self.cgroups = os.path.join(self.dir, "pods"), os.path.join(self.dir, "cgroup")
        os.makedirs(self.cgroups)
        self.kubelet = Kubelet(os.path.join(self.dir, "kubelet.sock"))
        self.addCleanup(self.kubelet.stop)

    def client(self):
        c = Client(self.kubelet.path, self.pods, self.cgroups)
        self.addCleanup(c.close)
        return c

    def test_pods_containers_mig_and_replicas_are_understood(self):
        self.kubelet.pods = [pod("team-a", "train-0", main=["GPU-1"], side=["MIG-1"]),
                             pod("team-b", "serve-0", main=["GPU-2::0", "GPU-2::3"]), pod("team-b", "cpu-only", main=[])]
        self.kubelet.advertised = ["GPU-1", "MIG-1", *(f"GPU-2::{i}" for i in range(4))]
        self.kubelet.start()
        for folder in ("team-a_train-0_uid-a", "team-b_serve-0_uid-b"):
            os.makedirs(os.path.join(self.pods, folder))
        self.assertEqual(self.client().ask(), ("up", [
            "team-a/train-0/uid-a/main GPU-1 -1/0", "team-b/serve-0/uid-b/main GPU-2 0/4", "team-b/serve-0/uid-b/main GPU-2 3/4",
            "team-a/train-0/uid-a/side MIG-1 -1/0"]))

    def test_a_kubelet_without_the_second_method_is_none_the_worse(self):
        self.kubelet.has_allocatable = False
        self.kubelet.pods = [pod("a", "p", main=["GPU-1::1"])]
        self.kubelet.start()
        self.assertEqual(self.client().ask(), ("up", ["a/p//main GPU-1 1/0"]))

    def test_a_kubelet_with_the_second_method_switched_off_is_none_the_worse(self):
        self.kubelet.wrong_allocatable = (grpc.StatusCode.UNKNOWN, "disabled")
        self.kubelet.pods = [pod("a", "p", main=["GPU-1::1"])]
        self.kubelet.start()
        self.assertEqual(self.client().ask(), ("up", ["a/p//main GPU-1 1/0"]))

    def test_a_pod_that_comes_is_seen_and_one_that_goes_is_released(self):
        self.kubelet.start()
        c = self.client()
        self.assertEqual(c.ask(), ("up", []))
        self.kubelet.pods = [pod("a", "p", main=["GPU-1"])]
        c.wait("the pod's allocation", "up", ["a/p//main GPU-1 -1/0"])
        self.kubelet.pods = []
        c.wait("its release", "up", [])

    def test_a_pod_that_is_being_set_up_comes_with_its_uid(self):
        os.makedirs(os.path.join(self.pods, "x_other_1"))
        self.kubelet.start()
        c = self.client()
        self.kubelet.pods = [pod("a", "p", main=["GPU-1"])]
        self.kubelet.wait_asked(2)
        os.makedirs(os.path.join(self.pods, "a_p_uid"))
        c.wait("the pod's allocation", "up", ["a/p/uid/main GPU-1 -1/0"])
        self.kubelet.pods = []
        c.wait("its release", "up", [])

    def test_a_socket_that_is_not_there_yet_is_no_trouble(self):
        c = self.client()
        self.assertEqual(c.ask(), ("away", []))
        self.kubelet.pods = [pod("a", "p", main=["GPU-1"])]
        self.kubelet.start()
        c.wait("the kubelet", "up", ["a/p//main GPU-1 -1/0"])

    def test_a_restart_releases_nothing(self):
        self.kubelet.pods = [pod("a", "p", main=["GPU-1"]), pod("b", "q", main=["GPU-2"])]
        self.kubelet.start()
        for name in ("a_p_1", "b_q_2"):
            os.makedirs(os.path.join(self.pods, name))
        holds = ["a/p/1/main GPU-1 -1/0", "b/q/2/main GPU-2 -1/0"]
        c = self.client()
        self.assertEqual(c.ask(), ("up", holds))
        self.kubelet.stop()
        c.wait("the kubelet's end", "cannot connect", holds)
        # it comes back before it knows its pods, and one of them was deleted meanwhile
        self.kubelet.pods = []
        shutil.rmtree(os.path.join(self.pods, "b_q_2"))
        self.kubelet.start()
        self.kubelet.wait_asked(3)
        c.wait("its return", "up", holds[:1])
        # a device that it gives to another pod is that one's
        self.kubelet.pods = [pod("c", "r", main=["GPU-1"])]
        c.wait("the other pod", "up", ["c/r//main GPU-1 -1/0"])

    def test_a_pod_that_ended_and_is_still_listed_holds_nothing(self):
        for name in ("a_done_11-1", "a_runs_11-2"):
            os.makedirs(os.path.join(self.pods, name))
        done = os.path.join(self.cgroups, "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11_1.slice")
        os.makedirs(done)
        os.makedirs(os.path.join(self.cgroups, "kubepods.slice/kubepods-pod11_2.slice"))
        self.kubelet.pods = [pod("a", "done", main=["GPU-1"]), pod("a", "runs", main=["GPU-2"])]
        self.kubelet.start()
        c = self.client()
        self.assertEqual(c.ask(), ("up", ["a/done/11-1/main GPU-1 -1/0", "a/runs/11-2/main GPU-2 -1/0"]))
        os.rmdir(done)
        c.wait("the end of the pod", "up", ["a/runs/11-2/main GPU-2 -1/0"])
        # also while the kubelet is away
        self.kubelet.stop()
        os.makedirs(os.path.join(self.cgroups, "kubepods.slice/kubepods-pod99.slice"))
        os.makedirs(os.path.join(self.pods, "x_other_99"))
        os.rmdir(os.path.join(self.cgroups, "kubepods.slice/kubepods-pod11_2.slice"))
        c.wait("the end of the other", "cannot connect", [])

    def test_whatever_it_answers_the_last_good_answer_holds(self):
        self.kubelet.pods = [pod("a", "p", main=["GPU-1"])]
        self.kubelet.start()
        holds = ["a/p//main GPU-1 -1/0"]
        c = self.client()
        self.assertEqual(c.ask(), ("up", holds))
        wrongs = (
            ("cannot be decoded", {"raw": b"\xff\xff\xff\xff"}),
            ("more than 16777216", {"raw": b"\x0a\x01x" * (6 << 20)}),
            ("would take more than", {"raw": b"\x0a\x00" * (7 << 20)}),
            ("gRPC status '14': not%09now", {"status": (grpc.StatusCode.UNAVAILABLE, "not\tnow")}),
            # whichever side notices first
            (r"does not answer in time|gRPC status '4'", {"delay_s": 30.0}),
        )
        for sentence, how in wrongs:
            with self.subTest(sentence):
                for name, value in how.items():
                    setattr(self.kubelet, name, value)
                c.wait(sentence, sentence, holds)
                for name in how:
                    setattr(self.kubelet, name, 0.0 if name == "delay_s" else None)
                self.kubelet.stopped.set()  # ends a delay
                self.kubelet.stopped.clear()
                c.wait("a good answer again", "up", holds)

    def test_an_answer_just_below_the_limit_is_read(self):
        self.kubelet.pods = [pod("a", f"p{i}", main=[f"GPU-{i}"]) for i in range(4000)]
        self.kubelet.pods.append(pod("a", "long", **{"x" * (15 << 20): ["GPU-last"]}))
        self.kubelet.start()
        state, holds = self.client().ask()
        self.assertEqual((state, len(holds)), ("up", 4001))

    def test_hostile_names_stay_on_one_line(self):
        self.kubelet.pods = [pod("a", "p\n\nup\n", main=["GPU-1"])]
        self.kubelet.start()
        self.assertEqual(self.client().ask(), ("up", ["a/p??up?//main GPU-1 -1/0"]))


if __name__ == "__main__":
    unittest.main()
