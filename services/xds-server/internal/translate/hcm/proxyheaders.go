package hcm

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	preservecasev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/header_formatters/preserve_case/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"fairlead.dev/services/xds-server/internal/translate/typedconfig"
)

// proxyHeaders applies ProxyConfig.proxyHeaders; route.applyProxyHeaders and the clusters' HTTP options apply the rest
// of it.
func proxyHeaders(m *managerv3.HttpConnectionManager, role Role, in *meshv1alpha1.ProxyConfig_ProxyHeaders) {
	if in == nil {
		return
	}
	if role == SidecarInbound {
		if details, ok := forwardDetails[in.GetForwardedClientCert()]; ok {
			m.ForwardClientCertDetails = details
		}
		if set := in.GetSetCurrentClientCertDetails(); set != nil {
			m.SetCurrentClientCertDetails = &managerv3.HttpConnectionManager_SetCurrentClientCertDetails{
				Subject: wrapperspb.Bool(set.GetSubject() == nil || set.GetSubject().GetValue()),
				Cert:    set.GetCert().GetValue(), Chain: set.GetChain().GetValue(),
				Dns: set.GetDns() == nil || set.GetDns().GetValue(), Uri: set.GetUri() == nil || set.GetUri().GetValue(),
			}
		}
	}
	if in.GetServer().GetDisabled().GetValue() {
		m.ServerName = ""
		m.ServerHeaderTransformation = managerv3.HttpConnectionManager_PASS_THROUGH
	} else if in.GetServer().GetValue() != "" && role != SidecarOutbound {
		m.ServerName = in.GetServer().GetValue()
	}
	if in.GetRequestId().GetDisabled().GetValue() {
		m.GenerateRequestId = wrapperspb.Bool(false)
	}
	m.AppendXForwardedPort = in.GetXForwardedPort().GetEnabled().GetValue()
	if in.GetPreserveHttp1HeaderCase().GetValue() {
		m.HttpProtocolOptions.HeaderKeyFormat = PreserveCase()
	}
}

// PreserveCase forwards HTTP/1 headers in the case in which they came, instead of lower case. The listener and the
// cluster of a request both need it.
func PreserveCase() *corev3.Http1ProtocolOptions_HeaderKeyFormat {
	return &corev3.Http1ProtocolOptions_HeaderKeyFormat{
		HeaderFormat: &corev3.Http1ProtocolOptions_HeaderKeyFormat_StatefulFormatter{StatefulFormatter: &corev3.TypedExtensionConfig{
			Name: "preserve_case", TypedConfig: typedconfig.Any(&preservecasev3.PreserveCaseFormatterConfig{}),
		}},
	}
}
