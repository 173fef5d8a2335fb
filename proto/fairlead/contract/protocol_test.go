package contract_test

import (
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/proto/fairlead/contract"
)

// The rules are those of Istio's page "Protocol Selection", and what istiod makes of names that the page leaves open.
func TestThePortDecidesItsProtocol(t *testing.T) {
	const (
		detected = configv1.Protocol_PROTOCOL_UNSPECIFIED
		tcp      = configv1.Protocol_PROTOCOL_TCP
		udp      = configv1.Protocol_PROTOCOL_UDP
		http     = configv1.Protocol_PROTOCOL_HTTP
		http2    = configv1.Protocol_PROTOCOL_HTTP2
		https    = configv1.Protocol_PROTOCOL_HTTPS
		grpc     = configv1.Protocol_PROTOCOL_GRPC
		grpcWeb  = configv1.Protocol_PROTOCOL_GRPC_WEB
		tls      = configv1.Protocol_PROTOCOL_TLS
		mongo    = configv1.Protocol_PROTOCOL_MONGO
		redis    = configv1.Protocol_PROTOCOL_REDIS
		mysql    = configv1.Protocol_PROTOCOL_MYSQL
		proxy    = configv1.Protocol_PROTOCOL_HTTP_PROXY
	)
	for _, c := range []struct {
		name, port     string
		number         int32
		transport, app string
		want           configv1.Protocol
	}{
		{"a name is a protocol", "http", 80, "TCP", "", http},
		{"a name begins with a protocol", "http-web", 80, "", "", http},
		{"in any case", "HTTP2-Web", 80, "", "", http2},
		{"a protocol ends at the first hyphen", "https-http-x", 80, "", "", https},
		{"without a hyphen it is another name", "httpweb", 80, "", "", detected},
		{"a protocol stands first", "auto-http", 80, "", "", detected},
		{"gRPC", "grpc-x", 80, "", "", grpc},
		{"gRPC-Web has a hyphen", "grpc-web", 80, "", "", grpcWeb},
		{"gRPC-Web with a suffix", "grpc-web-x", 80, "", "", grpcWeb},
		{"gRPC-Web needs no hyphen behind it", "grpc-webapp", 80, "", "", grpcWeb},
		{"TLS", "tls-x", 443, "", "", tls},
		{"MongoDB by name", "mongo", 80, "", "", mongo},
		{"Redis by name", "redis-cache", 80, "", "", redis},
		{"MySQL by name", "mysql-db", 80, "", "", mysql},
		{"a forward proxy by name", "http_proxy-x", 80, "", "", proxy},
		{"UDP by name alone", "udp-dns", 80, "TCP", "", udp},

		{"no name", "", 80, "", "", detected},
		{"SMTP", "mail", 25, "", "", tcp},
		{"DNS", "dns", 53, "", "", tcp},
		{"DNS without a name", "", 53, "", "", tcp},
		{"MySQL", "db", 3306, "", "", tcp},
		{"MongoDB", "db", 27017, "", "", tcp},
		{"Redis answers only what it is asked", "cache", 6379, "", "", detected},
		{"PostgreSQL too", "db", 5432, "", "", detected},
		{"a name counts before a number", "http-x", 3306, "", "", http},
		{"appProtocol counts before a number", "", 3306, "", "http", http},

		{"appProtocol counts before a name", "http", 80, "", "tls", tls},
		{"appProtocol in any case", "", 80, "", "GRPC", grpc},
		{"appProtocol has a suffix", "", 81, "", "http-web", http},
		{"an appProtocol that nobody knows", "http", 80, "", "example.com/own", detected},
		{"an appProtocol that nobody knows, at a number that says TCP", "http", 3306, "", "example.com/own", tcp},
		{"HTTP/2 in Kubernetes' words", "tcp", 80, "", "kubernetes.io/h2c", http2},
		{"WebSocket in Kubernetes' words", "tcp", 80, "", "kubernetes.io/ws", http},
		{"WebSocket over TLS in Kubernetes' words", "tcp", 80, "", "kubernetes.io/wss", https},
		{"other cases are not Kubernetes' words", "http", 80, "", "Kubernetes.io/H2C", detected},
		{"another of Kubernetes' prefix", "http", 80, "", "kubernetes.io/other", detected},

		{"UDP, whatever the name", "http", 53, "UDP", "", udp},
		{"UDP, whatever appProtocol", "", 53, "UDP", "http", udp},
		{"SCTP goes past proxies as UDP does", "http", 80, "SCTP", "", udp},
	} {
		t.Run(c.name, func(t *testing.T) {
			var app *string
			if c.app != "" {
				app = &c.app
			}
			if got := contract.PortProtocol(c.number, c.port, c.transport, app); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestAnEmptyAppProtocolLeavesTheNameToDecide(t *testing.T) {
	if got := contract.PortProtocol(80, "http", "TCP", new(string)); got != configv1.Protocol_PROTOCOL_HTTP {
		t.Error(got)
	}
}

func TestEveryProtocolIsOfOneGroup(t *testing.T) {
	for name, want := range map[string][2]bool{
		"": {}, "TCP": {}, "UDP": {}, "MONGO": {}, "REDIS": {}, "MYSQL": {}, "HTTP_PROXY": {},
		"HTTP": {true, false}, "HTTP2": {true, false}, "GRPC": {true, false}, "GRPC-WEB": {true, false},
		"HTTPS": {false, true}, "TLS": {false, true},
	} {
		p := contract.ParseProtocol(name)
		if got := [2]bool{contract.IsHTTP(p), contract.IsTLS(p)}; got != want {
			t.Errorf("%q is HTTP, TLS: %v, want %v", name, got, want)
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
