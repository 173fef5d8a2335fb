package class

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// GatewayTopology is a meshv1alpha1.Topology as canonical JSON, so that equal ones make equal keys; "" says nothing.
type GatewayTopology string

// gatewayTopology reads ProxyConfig.gatewayTopology of a node's metadata. Fields of later versions of Istio are left aside.
func gatewayTopology(v *structpb.Value) (GatewayTopology, error) {
	if v.GetStructValue() == nil {
		return "", nil
	}
	js, err := protojson.Marshal(v)
	if err == nil {
		err = (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(js, &meshv1alpha1.Topology{})
	}
	if err != nil {
		return "", fmt.Errorf("%w: PROXY_CONFIG.gatewayTopology: %v", ErrMalformed, err) //nolint:errorlint // one cause is enough
	}
	// encoding/json sorts the members; protojson varies its spaces from build to build.
	canonical, err := json.Marshal(v.AsInterface())
	if err != nil || len(canonical) > maxMetadataText {
		return "", fmt.Errorf("%w: PROXY_CONFIG.gatewayTopology of %d bytes", ErrMalformed, len(canonical))
	}
	if string(canonical) == "{}" {
		return "", nil
	}
	return GatewayTopology(canonical), nil
}

// Over returns the settings, with those of base where they say nothing.
func (t GatewayTopology) Over(base *meshv1alpha1.Topology) *meshv1alpha1.Topology {
	if t == "" {
		return base
	}
	out := &meshv1alpha1.Topology{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(t), out); err != nil {
		return base // gatewayTopology has read it before
	}
	merged := &meshv1alpha1.Topology{}
	proto.Merge(merged, base)
	proto.Merge(merged, out)
	return merged
}
