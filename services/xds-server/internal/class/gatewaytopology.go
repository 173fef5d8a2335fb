package class

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// GatewayTopology is a meshv1alpha1.Topology as canonical JSON, so that equal topologies make equal keys; "" if none is
// set.
type GatewayTopology string

// gatewayTopology reads ProxyConfig.gatewayTopology of a node's metadata.
func gatewayTopology(v *structpb.Value) (GatewayTopology, error) {
	text, err := canonical("gatewayTopology", v, &meshv1alpha1.Topology{})
	return GatewayTopology(text), err
}

// canonical returns one setting of a node's ProxyConfig as canonical JSON. Fields that this version of Istio's API does
// not know are ignored.
func canonical(name string, v *structpb.Value, as proto.Message) (string, error) {
	if v.GetStructValue() == nil {
		return "", nil
	}
	js, err := protojson.Marshal(v)
	if err == nil {
		err = (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(js, as)
	}
	if err != nil {
		return "", fmt.Errorf("%w: PROXY_CONFIG.%s: %v", ErrMalformed, name, err) //nolint:errorlint // one cause is enough
	}
	// encoding/json sorts the members; the spaces of protojson vary from build to build.
	out, err := json.Marshal(v.AsInterface())
	if err != nil || len(out) > maxMetadataText {
		return "", fmt.Errorf("%w: PROXY_CONFIG.%s of %d bytes", ErrMalformed, name, len(out))
	}
	if string(out) == "{}" {
		return "", nil
	}
	return string(out), nil
}

// WithDefaults returns the settings, with those of defaults for all fields that are not set.
func (t GatewayTopology) WithDefaults(defaults *meshv1alpha1.Topology) *meshv1alpha1.Topology {
	return withDefaults(string(t), defaults)
}

// withDefaults returns what canonical has parsed, over defaults.
func withDefaults[M proto.Message](text string, defaults M) M {
	if text == "" {
		return defaults
	}
	own := defaults.ProtoReflect().New().Interface().(M)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), own); err != nil {
		return defaults // canonical has parsed it before
	}
	merged := defaults.ProtoReflect().New().Interface().(M)
	proto.Merge(merged, defaults)
	proto.Merge(merged, own)
	return merged
}
