package secret_test

import (
	"errors"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/xds-server/internal/class"
	"fairlead.dev/services/xds-server/internal/credential"
	"fairlead.dev/services/xds-server/internal/input"
	"fairlead.dev/services/xds-server/internal/mesh"
	"fairlead.dev/services/xds-server/internal/meshtest"
	"fairlead.dev/services/xds-server/internal/plan"
	"fairlead.dev/services/xds-server/internal/translate/secret"
)

const identity = "spiffe://cluster.local/ns/edge/sa/gateway"

func TestGatewaySecrets(t *testing.T) {
	tls := func(s *networking.ServerTLSSettings) *networking.Server { return &networking.Server{Tls: s} }
	client := func(name string) *networking.TrafficPolicy {
		return &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{CredentialName: name}}
	}
	state := meshtest.State(t,
		meshtest.Config(mesh.KindGateway, "any", "mine",
			&networking.Gateway{Selector: map[string]string{"app": "edge"}, Servers: []*networking.Server{
				tls(&networking.ServerTLSSettings{CredentialName: "both"}),
				tls(&networking.ServerTLSSettings{CredentialNames: []string{"first", "second"}}),
				tls(&networking.ServerTLSSettings{CredentialName: "pending", CaCertCredentialName: "clients"}),
				tls(&networking.ServerTLSSettings{CredentialName: "absent"}),
				tls(&networking.ServerTLSSettings{CredentialName: "kubernetes://edge/both"}),
				tls(&networking.ServerTLSSettings{CredentialName: "kubernetes://other/both"}),
				tls(&networking.ServerTLSSettings{CredentialName: "kubernetes-gateway://edge/both"}),
				tls(&networking.ServerTLSSettings{CredentialName: "kubernetes-gateway://other/both"}),
				tls(&networking.ServerTLSSettings{CredentialName: "kubernetes-gateway://both"}),
				tls(&networking.ServerTLSSettings{CredentialName: "sds://both"}),
			}}),
		meshtest.Config(mesh.KindGateway, "edge", "another's",
			&networking.Gateway{Selector: map[string]string{"app": "other"}, Servers: []*networking.Server{
				tls(&networking.ServerTLSSettings{CredentialName: "unused"}),
			}}),
		meshtest.Config(mesh.KindDestinationRule, "edge", "client", &networking.DestinationRule{
			Host: "a.example.com", TrafficPolicy: client("client"), Subsets: []*networking.Subset{{Name: "v1", TrafficPolicy: client("subset")}},
		}),
		meshtest.Config(mesh.KindDestinationRule, "edge", "qualified",
			&networking.DestinationRule{Host: "c.example.com", TrafficPolicy: client("kubernetes-gateway://edge/qualified")}),
		meshtest.Config(mesh.KindDestinationRule, "edge", "foreign",
			&networking.DestinationRule{Host: "d.example.com", TrafficPolicy: client("kubernetes-gateway://other/unused")}),
		meshtest.Config(mesh.KindDestinationRule, "other", "hidden",
			&networking.DestinationRule{Host: "b.example.com", TrafficPolicy: client("hidden")},
			meshtest.ExportedTo("other")),
	)
	pair := &secretv1.Credential{CertificateChain: []byte("chain"), PrivateKey: []byte("key"), CaCertificates: []byte("ca"),
		Crl: []byte("crl")}
	authority := &secretv1.Credential{CaCertificates: []byte("ca"), Crl: []byte("crl")}
	known := map[credential.Ref]*credential.Credential{}
	for name, c := range map[string]*secretv1.Credential{
		"both": pair, "both-cacert": authority, "first": pair, "second": pair, "clients-cacert": authority, "absent": nil, "unused": pair,
		"client": pair, "client-cacert": authority, "subset": pair, "hidden": pair, "qualified": pair, "qualified-cacert": authority,
		"second-cacert": {CertificateChain: []byte("c"), PrivateKey: []byte("k")},
	} {
		known[credential.Ref{Identity: identity, Name: name}] = credential.New(c)
	}
	state = state.WithCredentials(credential.NewSet(known))
	router := class.Key{Type: class.Router, Namespace: "edge", Labels: map[string]string{"app": "edge"}, Identity: identity}
	unverified := router
	unverified.Identity = ""
	const cert, ca, none, pending = "certificate", "authority", "", "pending"
	for name, tc := range map[string]struct {
		key  class.Key
		want string
	}{
		"kubernetes://both": {router, cert}, "kubernetes://both-cacert": {router, ca}, "kubernetes://first": {router, cert},
		"kubernetes://second":         {router, cert},
		"kubernetes://second-cacert":  {router, none}, // a certificate under a name for authorities
		"kubernetes://clients-cacert": {router, ca}, "kubernetes://pending": {router, pending}, "kubernetes://pending-cacert": {router, pending},
		"kubernetes://absent": {router, none}, "kubernetes://unused": {router, none}, "kubernetes://client": {router, cert},
		"kubernetes://client-cacert": {router, ca}, "kubernetes://subset": {router, cert}, "kubernetes://hidden": {router, none},
		"kubernetes://edge/both": {router, cert}, "kubernetes://other/both": {router, none}, "kubernetes://edge/first": {router, none},
		"kubernetes-gateway://edge/both": {router, cert}, "kubernetes-gateway://edge/both-cacert": {router, ca},
		"kubernetes-gateway://other/both": {router, none},
		"kubernetes-gateway://both":       {router, none}, "kubernetes-gateway://edge/client": {router, cert},
		"kubernetes://sds://both": {router, none}, "sds://both": {router, none},
		"kubernetes-gateway://edge/qualified": {router, cert}, "kubernetes-gateway://edge/qualified-cacert": {router, ca},
		"kubernetes-gateway://edge/unused":  {router, none},
		"kubernetes-gateway://other/unused": {router, none}, "kubernetes://": {router, none}, "kubernetes:///both": {router, none},
		"kubernetes://edge/": {router, none}, "both": {router, none}, "default": {router, none},
	} {
		t.Run(name, func(t *testing.T) {
			got := func(key class.Key) string {
				m, err := secret.Translator{}.Build(input.NewView(&key, state).Reader(), name)
				if errors.Is(err, plan.ErrPending) {
					return pending
				}
				if err != nil {
					t.Fatal(err)
				}
				if m == nil {
					return none
				}
				s := m.(*tlsv3.Secret)
				if s.GetName() != name {
					t.Errorf("called %q", s.GetName())
				}
				if v := s.GetValidationContext(); v != nil {
					if string(v.GetTrustedCa().GetInlineBytes()) != "ca" || string(v.GetCrl().GetInlineBytes()) != "crl" {
						t.Errorf("authority %v", v)
					}
					return ca
				}
				c := s.GetTlsCertificate()
				if string(c.GetCertificateChain().GetInlineBytes()) != "chain" || string(c.GetPrivateKey().GetInlineBytes()) != "key" {
					t.Error("not the pair")
				}
				return cert
			}
			if got := got(tc.key); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if got := got(unverified); got != none {
				t.Errorf("a proxy that nobody has verified gets %q", got)
			}
		})
	}
}

// A sidecar gets the credentials of DestinationRules that select it, and none that only others may use.
func TestSidecarSecrets(t *testing.T) {
	const identity = "spiffe://cluster.local/ns/shop/sa/client"
	rule := func(name, host string, app string) *configv1.Resource {
		spec := &networking.DestinationRule{Host: host,
			TrafficPolicy: &networking.TrafficPolicy{Tls: &networking.ClientTLSSettings{CredentialName: name}}}
		if app != "" {
			spec.WorkloadSelector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": app}}
		}
		return meshtest.Config(mesh.KindDestinationRule, "shop", name, spec)
	}
	known := map[credential.Ref]*credential.Credential{}
	for _, name := range []string{"own", "own-cacert", "others", "everybodys"} {
		known[credential.Ref{Identity: identity, Name: name}] = credential.New(&secretv1.Credential{
			CertificateChain: []byte("chain"), PrivateKey: []byte("key"), CaCertificates: []byte("ca"),
		})
	}
	state := meshtest.State(t, rule("own", "a", "client"), rule("others", "b", "other"), rule("everybodys", "c", "")).WithCredentials(
		credential.NewSet(known))
	key := &class.Key{Type: class.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "client"}, Identity: identity}
	for name, want := range map[string]bool{
		"kubernetes://own": true, "kubernetes://own-cacert": true, "kubernetes-gateway://shop/own": true, "kubernetes-gateway://other/own": false,
		"kubernetes://others": false, "kubernetes://everybodys": false,
	} {
		m, err := secret.Translator{}.Build(input.NewView(key, state).Reader(), name)
		if err != nil || (m != nil) != want {
			t.Errorf("%s: built %v, %v", name, m != nil, err)
		}
	}
}
