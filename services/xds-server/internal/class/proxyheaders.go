package class

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// ProxyHeaders is a meshv1alpha1.ProxyConfig_ProxyHeaders as canonical JSON, so that equal settings make equal keys; ""
// if none are set.
type ProxyHeaders string

// proxyHeaders reads ProxyConfig.proxyHeaders of a node's metadata.
func proxyHeaders(v *structpb.Value) (ProxyHeaders, error) {
	text, err := canonical("proxyHeaders", v, &meshv1alpha1.ProxyConfig_ProxyHeaders{})
	return ProxyHeaders(text), err
}

// WithDefaults returns the settings, with those of defaults for all fields that are not set.
func (h ProxyHeaders) WithDefaults(defaults *meshv1alpha1.ProxyConfig_ProxyHeaders) *meshv1alpha1.ProxyConfig_ProxyHeaders {
	return withDefaults(string(h), defaults)
}

// unlessDefault returns "" if the settings add nothing to the defaults. Agents repeat the mesh's settings in the node's
// metadata; such proxies must not make a class of their own.
func (h ProxyHeaders) unlessDefault(defaults *meshv1alpha1.ProxyConfig_ProxyHeaders) ProxyHeaders {
	settings := h.WithDefaults(defaults)
	if defaults == nil {
		defaults = &meshv1alpha1.ProxyConfig_ProxyHeaders{}
	}
	if h == "" || proto.Equal(settings, defaults) {
		return ""
	}
	return h
}
