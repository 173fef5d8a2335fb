package meshtest

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// GatewayAPI makes an object of the Gateway API, made at Epoch: of *configv1.GatewayListeners, AttachedRoute or
// BackendTLS. change may alter it.
func GatewayAPI(kind, namespace, name string, body proto.Message, change ...func(*configv1.GatewayAPIConfig)) *configv1.Resource {
	c := &configv1.GatewayAPIConfig{CreationTime: timestamppb.New(Epoch)}
	switch b := body.(type) {
	case *configv1.GatewayListeners:
		c.Object = &configv1.GatewayAPIConfig_Listeners{Listeners: b}
	case *configv1.AttachedRoute:
		c.Object = &configv1.GatewayAPIConfig_Route{Route: b}
	case *configv1.BackendTLS:
		c.Object = &configv1.GatewayAPIConfig_BackendTls{BackendTls: b}
	}
	for _, f := range change {
		f(c)
	}
	return Resource(kind, namespace, name, &configv1.Resource{Body: &configv1.Resource_GatewayApi{GatewayApi: c}})
}

// Any packs a message of Istio's API.
func Any(m proto.Message) *anypb.Any {
	packed, err := anypb.New(m)
	if err != nil {
		panic(err) // a message that cannot be encoded is a broken test
	}
	return packed
}
