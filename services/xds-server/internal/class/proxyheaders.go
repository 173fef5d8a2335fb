package class

import (
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// ProxyHeaders is a meshv1alpha1.ProxyConfig_ProxyHeaders as canonical JSON, so that equal ones make equal keys; "" says nothing.
type ProxyHeaders string

// proxyHeaders reads ProxyConfig.proxyHeaders of a node's metadata.
func proxyHeaders(v *structpb.Value) (ProxyHeaders, error) {
	text, err := canonical("proxyHeaders", v, &meshv1alpha1.ProxyConfig_ProxyHeaders{})
	return ProxyHeaders(text), err
}

// Over returns the settings, with those of base where they say nothing.
func (h ProxyHeaders) Over(base *meshv1alpha1.ProxyConfig_ProxyHeaders) *meshv1alpha1.ProxyConfig_ProxyHeaders {
	if h == "" {
		return base
	}
	out := &meshv1alpha1.ProxyConfig_ProxyHeaders{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(h), out); err != nil {
		return base // proxyHeaders has read it before
	}
	merged := &meshv1alpha1.ProxyConfig_ProxyHeaders{}
	proto.Merge(merged, base)
	proto.Merge(merged, out)
	return merged
}

// besides is "" where the settings add nothing to base: proxies are started with what the mesh said for all, and are one class with the others.
func (h ProxyHeaders) besides(base *meshv1alpha1.ProxyConfig_ProxyHeaders) ProxyHeaders {
	over := h.Over(base)
	if base == nil {
		base = &meshv1alpha1.ProxyConfig_ProxyHeaders{}
	}
	if h == "" || proto.Equal(over, base) {
		return ""
	}
	return h
}
