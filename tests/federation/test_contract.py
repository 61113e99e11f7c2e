"""What this project uses of Flower beyond its public interface is still there, in the form in which it is
used."""

from __future__ import annotations

import importlib
import inspect

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'unskew[flower]'")

pytestmark = pytest.mark.flower
PROTO = "flwr.proto."
SECAGG = "flwr.common.secure_aggregation."
INFLATABLE = "flwr.supercore.inflatable."
NAMES = {
    "flwr.app.message:remove_content_from_message": "message",
    "flwr.common.serde:message_from_proto": "message_proto",
    "flwr.common.serde:message_to_proto": "message",
    "flwr.common.serde:user_config_from_proto": "proto",
    "flwr.common.serde:user_config_to_proto": "user_config",
    INFLATABLE + "inflatable_object:get_all_nested_objects": "obj",
    INFLATABLE + "inflatable_object:get_object_tree": "obj",
    INFLATABLE + "inflatable_object:no_object_id_recompute": "",
    INFLATABLE + "inflatable_protobuf_utils:make_pull_object_fn_protobuf": "pull_object_protobuf node run_id",
    INFLATABLE
    + "inflatable_protobuf_utils:make_push_object_fn_protobuf": "push_object_protobuf node run_id session_id",
    INFLATABLE
    + "inflatable_utils:pull_and_inflate_object_from_tree": "object_tree pull_object_fn confirm_object_received_fn return_type initial_backoff backoff_cap",
    INFLATABLE + "inflatable_utils:ObjectUnavailableError": "object_id",
    INFLATABLE + "inflatable_utils:ObjectPullError": "object_id reason",
    INFLATABLE + "inflatable_utils:ObjectPushError": "object_id",
    INFLATABLE + "inflatable_utils:push_objects": "objects push_object_fn object_ids_to_push",
    "flwr.supercore.control.control_http_client:ControlHttpClient": "base_url",
    "flwr.server.superlink.linkstate.sql_linkstate:SqlLinkState.create_node": "self public_key",
    "flwr.supercore.error:FlowerError.from_json": "value",
    "flwr.supercore.heartbeat:HeartbeatSender": "heartbeat_fn",
    "flwr.supercore.heartbeat:make_task_heartbeat_fn_http": "client",
    "flwr.supercore.interceptors:RuntimeTokenHttpInterceptor": "token",
    "flwr.supercore.interceptors:RuntimeVersionHttpInterceptor": "component_name",
    "flwr.supercore.interceptors:SuperExecAuthHttpInterceptor": "master_secret protected_methods",
    "flwr.supercore.primitives.asymmetric:public_key_to_bytes": "public_key",
    "flwr.supercore.primitives.asymmetric:bytes_to_public_key": "public_key_bytes",
    "flwr.supercore.primitives.asymmetric:generate_key_pairs": "",
    SECAGG + "crypto.shamir:create_shares": "secret threshold num",
    SECAGG + "crypto.shamir:combine_shares": "share_list",
    SECAGG + "crypto.symmetric_encryption:generate_shared_key": "private_key public_key",
    SECAGG + "crypto.symmetric_encryption:encrypt": "key plaintext",
    SECAGG + "crypto.symmetric_encryption:decrypt": "key ciphertext",
    SECAGG + "secaggplus_utils:share_keys_plaintext_concat": "src_node_id dst_node_id b_share sk_share",
    SECAGG + "secaggplus_utils:share_keys_plaintext_separate": "plaintext",
    "flwr.supercore.retry:make_simple_http_retry_invoker": "",
    "flwr.superlink.servicer.fleet.fleet_handlers:push_messages": "request state",
    INFLATABLE + "inflatable_object:get_object_children_ids_from_object_content": "object_content",
    "flwr.supercore.runtime:RuntimeHttpClient": "base_url interceptors retry_invoker",
    "flwr.supernode.fleet_http_client:FleetHttpClient": "base_url interceptors verify timeout retry_invoker",
    "flwr.supernode.node_auth_http_interceptor:NodeAuthHttpInterceptor": "private_key public_key",
    "uvicorn.protocols.http.h11_impl:H11Protocol": "config server_state app_state",
    "uvicorn.server:ServerState": "",
}
"""What is called -> the names of the parameters it is called with."""
CALLS = {
    "uvicorn.protocols.http.h11_impl:H11Protocol": "connection_made connection_lost data_received on_response_complete send_400_response",
    "flwr.supernode.fleet_http_client:FleetHttpClient": "RegisterNode ActivateNode DeactivateNode SendNodeHeartbeat PullMessages PushMessages PullObject PushObject ConfirmMessageReceived",
    "flwr.supercore.control.control_http_client:ControlHttpClient": "RegisterNode UnregisterNode ListNodes StartRun ListRuns StopRun",
    "flwr.supercore.runtime:RuntimeHttpClient": "AcquireTask PullTaskInput PushTaskOutput SendTaskHeartbeat GetNodes PushMessages PullMessages PullObject PushObject ConfirmMessageReceived",
}
FIELDS = {
    PROTO + "fleet_pb2:RegisterNodeFleetRequest": "public_key",
    PROTO + "fleet_pb2:ActivateNodeRequest": "public_key heartbeat_interval",
    PROTO + "fleet_pb2:DeactivateNodeRequest": "node_id",
    PROTO + "fleet_pb2:PullMessagesRequest": "node",
    PROTO + "fleet_pb2:PullMessagesResponse": "messages_list message_object_trees",
    PROTO + "fleet_pb2:PushMessagesRequest": "node messages_list message_object_trees",
    PROTO + "fleet_pb2:PushMessagesResponse": "objects_to_push session_id",
    PROTO + "heartbeat_pb2:SendNodeHeartbeatRequest": "node heartbeat_interval",
    PROTO + "message_pb2:ConfirmMessageReceivedRequest": "node run_id message_object_id",
    PROTO + "message_pb2:ObjectTree": "object_id children",
    PROTO + "control_pb2:RegisterNodeRequest": "public_key name",
    PROTO + "control_pb2:UnregisterNodeRequest": "node_id",
    PROTO + "control_pb2:ListNodesResponse": "nodes_info",
    PROTO + "node_pb2:NodeInfo": "node_id public_key status",
    PROTO + "control_pb2:StartRunRequest": "fab override_config",
    PROTO + "control_pb2:ListRunsRequest": "run_id",
    PROTO + "control_pb2:ListRunsResponse": "run_dict",
    PROTO + "control_pb2:StopRunRequest": "run_id",
    PROTO + "fab_pb2:Fab": "hash_str content",
    PROTO + "task_pb2:Task": "task_id run_id fab_hash",
    PROTO + "runtime_pb2:AcquireTaskRequest": "supported_task_types",
    PROTO + "runtime_pb2:AcquireTaskResponse": "task token",
    PROTO + "runtime_pb2:PullTaskInputResponse": "run",
    PROTO + "runtime_pb2:GetNodesResponse": "nodes",
    PROTO + "runtime_pb2:PushAppMessagesRequest": "messages_list message_object_trees",
    PROTO + "runtime_pb2:PushAppMessagesResponse": "message_ids objects_to_push session_id",
    PROTO + "runtime_pb2:PullAppMessagesRequest": "message_ids",
    PROTO + "runtime_pb2:PullAppMessagesResponse": "messages_list message_object_trees",
    PROTO + "runtime_pb2:PushTaskOutputRequest": "sub_status details",
}
MENDING = (
    "This version of Flower cannot be used: allow only tested ones in pyproject.toml, or change"
    " src/unskew/federation."
)


def found(name: str):
    module, _, path = name.partition(":")
    try:
        value = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        pytest.fail(f"Flower has no {name} any more. {MENDING}", pytrace=False)
    return value


@pytest.mark.parametrize("name", NAMES)
def test_a_name_takes_the_parameters_it_is_given(name):
    parameters = inspect.signature(found(name)).parameters
    lost = [p for p in NAMES[name].split() if p not in parameters]
    assert not lost, f"Flower's {name} takes no {', '.join(lost)} any more. {MENDING}"


@pytest.mark.parametrize("name", CALLS)
def test_a_client_has_the_calls_that_are_made(name):
    lost = [call for call in CALLS[name].split() if not hasattr(found(name), call)]
    assert not lost, f"Flower's {name} has no {', '.join(lost)} any more. {MENDING}"


@pytest.mark.parametrize("name", FIELDS)
def test_a_message_has_the_fields_that_are_used(name):
    lost = [field for field in FIELDS[name].split() if field not in found(name).DESCRIPTOR.fields_by_name]
    assert not lost, f"Flower's {name} has no {', '.join(lost)} any more. {MENDING}"


def test_codes_kinds_and_numbers_have_their_names():
    codes, kinds = found("flwr.supercore.error:ApiErrorCode"), found("flwr.supercore.constant:TaskType")
    for name in (
        "FLEET_NODE_ACTIVATION_FAILED", "PUBLIC_KEY_ALREADY_IN_USE", "RUN_ALREADY_FINISHED",
        "RUNTIME_AUTHENTICATION_FAILED",
    ):  # fmt: skip
        assert hasattr(codes, name), f"Flower's ApiErrorCode has no {name} any more. {MENDING}"
    assert "flwr-serverapp" in list(kinds), f"Flower's TaskType has no flwr-serverapp any more. {MENDING}"
    assert found("flwr.common.constant:SUPERLINK_NODE_ID") == 1
    for name in ("run_id", "node_id", "task_id"):
        assert hasattr(type(found("flwr.supercore.task_identity:TaskIdentity")), name), (
            f"no {name}. {MENDING}"
        )
