package contract_test

import (
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

func TestThePortDecidesItsProtocol(t *testing.T) {
	for _, c := range []struct {
		port            int32
		name, transport string
		app             string
		want            configv1.Protocol
	}{
		{80, "http", "TCP", "", configv1.Protocol_PROTOCOL_HTTP}, {80, "http-web", "", "", configv1.Protocol_PROTOCOL_HTTP},
		{80, "httpweb", "", "", 0},
		{80, "grpc-web-x", "", "", configv1.Protocol_PROTOCOL_GRPC_WEB}, {80, "grpc-x", "", "", configv1.Protocol_PROTOCOL_GRPC},
		{80, "auto-http", "", "", 0},
		{3306, "db", "", "", configv1.Protocol_PROTOCOL_TCP}, {80, "tcp", "", "kubernetes.io/h2c", configv1.Protocol_PROTOCOL_HTTP2},
		{80, "http", "", "tls", configv1.Protocol_PROTOCOL_TLS}, {53, "http", "UDP", "", configv1.Protocol_PROTOCOL_UDP},
		{81, "", "", "http-web", configv1.Protocol_PROTOCOL_HTTP},
	} {
		if got := contract.PortProtocol(c.port, c.name, c.transport, c.app); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestAProtocolIsReadAsItIsWritten(t *testing.T) {
	for n := range configv1.Protocol_name {
		p := configv1.Protocol(n)
		if got := contract.ParseProtocol(contract.ProtocolName(p)); got != p {
			t.Errorf("%v is written %q, which is read as %v", p, contract.ProtocolName(p), got)
		}
	}
}
