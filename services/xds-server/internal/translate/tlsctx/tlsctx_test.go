package tlsctx

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
)

func TestTrustAcceptsAliases(t *testing.T) {
	trust := NewTrust("cluster.local", []string{"old.local", "", "cluster.local", "old.local"})
	if !slices.Equal(trust, []string{"cluster.local", "old.local"}) {
		t.Errorf("%v", trust)
	}
	got := trust.expand([]string{"spiffe://cluster.local/ns/a/sa/b", "spiffe://foreign/ns/a/sa/b", "spiffe://old.local/ns/a/sa/c",
		"www.example.com"})
	want := []string{
		"spiffe://cluster.local/ns/a/sa/b", "spiffe://cluster.local/ns/a/sa/c", "spiffe://foreign/ns/a/sa/b",
		"spiffe://old.local/ns/a/sa/b", "spiffe://old.local/ns/a/sa/c", "www.example.com",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A server with certificate files verifies clients by its file, whatever Secret it names.
func TestServerWithFilesVerifiesClientsByItsFile(t *testing.T) {
	socket, err := Terminate(&networking.ServerTLSSettings{
		Mode: networking.ServerTLSSettings_MUTUAL, ServerCertificate: "/a", PrivateKey: "/b", CaCertificates: "/c", CaCertCredentialName: "d",
	}, Terminator{Credentials: true})
	if err != nil {
		t.Fatal(err)
	}
	out := &tlsv3.DownstreamTlsContext{}
	if err := socket.GetTypedConfig().UnmarshalTo(out); err != nil {
		t.Fatal(err)
	}
	if got := out.GetCommonTlsContext().GetCombinedValidationContext().GetValidationContextSdsSecretConfig().GetName(); got != "file-root:/c" {
		t.Errorf("verified with %s", got)
	}
}

func upstream(t *testing.T, socket *corev3.TransportSocket) *tlsv3.UpstreamTlsContext {
	t.Helper()
	out := &tlsv3.UpstreamTlsContext{}
	if err := socket.GetTypedConfig().UnmarshalTo(out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestClientWithoutIdentitiesAcceptsOnlyTheMesh(t *testing.T) {
	for _, identities := range [][]string{nil, {"spiffe://cluster.local/ns/a/sa/b"}} {
		context := upstream(t, Client(NewTrust("cluster.local", nil), "sni", identities, CarriesAny))
		names := context.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext().GetMatchTypedSubjectAltNames()
		if len(names) == 0 {
			t.Errorf("identities %v: no name is checked", identities)
		}
		for _, n := range names {
			if n.GetSanType() != tlsv3.SubjectAltNameMatcher_URI {
				t.Errorf("identities are URIs: %v", n)
			}
		}
	}
}

// A server that agreed on it would send bytes that upstream Envoy forwards to the application.
func TestPeerExchangeIsNeverOffered(t *testing.T) {
	for carries := CarriesAny; carries <= CarriesHTTP; carries++ {
		context := upstream(t, Client(NewTrust("cluster.local", nil), "sni", nil, carries))
		if slices.Contains(context.GetCommonTlsContext().GetAlpnProtocols(), "istio-peer-exchange") {
			t.Errorf("offered for %d", carries)
		}
	}
	if slices.Contains(meshServerALPN, "istio-peer-exchange") {
		t.Error("accepted")
	}
}

func TestExternalVerifiesUnlessInsecureSkipVerify(t *testing.T) {
	for name, tc := range map[string]struct {
		settings *networking.ClientTLSSettings
		checks   bool
	}{
		"system roots": {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE}, true},
		"a file":       {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: "/ca.pem"}, true},
		"skipped": {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, InsecureSkipVerify: wrapperspb.Bool(true)},
			false},
	} {
		socket, err := External(tc.settings, nil, nil, false)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		roots := upstream(t, socket).GetCommonTlsContext().GetCombinedValidationContext().GetValidationContextSdsSecretConfig().GetName()
		if (roots != "") != tc.checks {
			t.Errorf("%s: checked by %q", name, roots)
		}
	}
}

func TestMissingFilesAreNamed(t *testing.T) {
	_, err := External(&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_MUTUAL}, nil, nil, false)
	if err == nil || !strings.Contains(err.Error(), "clientCertificate") {
		t.Errorf("client: %v", err)
	}
	_, err = Terminate(&networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE}, Terminator{HTTP: true, Credentials: true})
	if err == nil || !strings.Contains(err.Error(), "serverCertificate") {
		t.Errorf("server: %v", err)
	}
	_, err = Terminate(&networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_MUTUAL, ServerCertificate: "c", PrivateKey: "k"},
		Terminator{HTTP: true})
	if err == nil || !strings.Contains(err.Error(), "caCertificates") {
		t.Errorf("mutual: %v", err)
	}
	_, err = Terminate(&networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: "x"}, Terminator{HTTP: true})
	if !errors.Is(err, ErrUnserved) {
		t.Errorf("credential: %v", err)
	}
}
