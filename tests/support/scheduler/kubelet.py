"""A kubelet that answers the pod-resources service (v1) on a unix socket, by gRPC's own server and protobuf's own encoder.

    with Kubelet(path) as k:
        k.pods = [pod("team-a", "train-0", main=["GPU-..."])]
        k.advertised = ["GPU-...::0", "GPU-...::1"]

It has the fields that a kubelet sends and the exporter does not look at. What it does wrong is set by attributes."""

import os
import threading
import time
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TEXT, INT64, MESSAGE = 9, 3, 11  # descriptor types
MESSAGES = {
    "ListPodResourcesResponse": [("pod_resources", 1, "PodResources", True)],
    "PodResources": [("name", 1, TEXT, False), ("namespace", 2, TEXT, False), ("containers", 3, "ContainerResources", True)],
    "ContainerResources": [("name", 1, TEXT, False), ("devices", 2, "ContainerDevices", True), ("cpu_ids", 3, INT64, True),
                           ("memory", 4, "ContainerMemory", True)],
    "ContainerDevices": [("resource_name", 1, TEXT, False), ("device_ids", 2, TEXT, True), ("topology", 3, "TopologyInfo", False)],
    "ContainerMemory": [("memory_type", 1, TEXT, False), ("size", 2, INT64, False)],
    "TopologyInfo": [("nodes", 1, "NUMANode", True)],
    "NUMANode": [("ID", 1, INT64, False)],
    "AllocatableResourcesResponse": [("devices", 1, "ContainerDevices", True), ("cpu_ids", 2, INT64, True)],
}


def build_messages():
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            f = message.field.add(name=field, number=number, label=3 if repeated else 1)
            f.type = kind if isinstance(kind, int) else MESSAGE
            if not isinstance(kind, int):
                f.type_name = f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    factory = message_factory.MessageFactory(pool)
    return {name: factory.GetPrototype(pool.FindMessageTypeByName(f"v1.{name}")) for name in MESSAGES}


TYPES = build_messages()


def resource_of(device):
    return "nvidia.com/mig-1g.10gb" if device.startswith("MIG-") else "nvidia.com/gpu"


def devices_of(ids):
    return [TYPES["ContainerDevices"](resource_name=resource_of(i), device_ids=[i],
                                      topology=TYPES["TopologyInfo"](nodes=[TYPES["NUMANode"](ID=0)])) for i in ids]


def pod(namespace, name, **containers):
    """Containers by name, each with its device ids."""
    made = [TYPES["ContainerResources"](name=c, devices=devices_of(ids), cpu_ids=[0, 1],
                                        memory=[TYPES["ContainerMemory"](memory_type="memory", size=1 << 30)])
            for c, ids in containers.items()]
    return TYPES["PodResources"](name=name, namespace=namespace, containers=made)


class Kubelet:
    def __init__(self, path):
        self.path = path
        self.pods, self.advertised = [], []
        self.delay_s = 0.0
        self.status = None  # (code, text) instead of an answer
        self.raw = None  # bytes instead of the message
        self.has_allocatable = True
        self.wrong_allocatable = None  # (code, text) instead of that answer only
        self.calls = []  # names of the methods called
        self.server = None
        self.stopped = threading.Event()

    def answer(self, method, make):
        def handler(_request, context):
            self.calls.append(method)
            self.stopped.wait(self.delay_s)
            wrong = self.status or (self.wrong_allocatable if method != "List" else None)
            if wrong:
                context.abort(*wrong)
            return self.raw if self.raw is not None else make().SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handler)

    def start(self):
        methods = {"List": self.answer("List", lambda: TYPES["ListPodResourcesResponse"](pod_resources=self.pods))}
        if self.has_allocatable:
            methods["GetAllocatableResources"] = self.answer(
                "GetAllocatableResources", lambda: TYPES["AllocatableResourcesResponse"](devices=devices_of(self.advertised), cpu_ids=[0, 1]))
        self.stopped.clear()
        self.server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", 256 << 20)])
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),))
        if self.server.add_insecure_port(f"unix:{self.path}") == 0:
            raise AssertionError(f"{self.path} cannot be listened on")
        self.server.start()

    def stop(self):
        """As a kubelet that is stopped: the socket goes with it."""
        if self.server:
            self.stopped.set()
            self.server.stop(None).wait()
            self.server = None
        if os.path.exists(self.path):
            os.unlink(self.path)

    def wait_asked(self, times=1, method="List"):
        """Until it was asked so many times from now on."""
        goal = self.calls.count(method) + times
        deadline = time.monotonic() + 300
        while self.calls.count(method) < goal:
            if time.monotonic() > deadline:
                raise AssertionError(f"nobody asks for {method}")
            time.sleep(0.02)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.stop()
