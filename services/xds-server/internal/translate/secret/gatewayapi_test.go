package secret_test

import (
	"errors"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

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

// A gateway gets the Secrets that a listener of its Gateway or ListenerSet names, of whatever namespace, and no others.
func TestSecretsOfListeners(t *testing.T) {
	const identity = "spiffe://cluster.local/ns/edge/sa/gateway"
	labels := map[string]string{"app": "edge"}
	owner := func(app string, backend string, names ...string) *configv1.GatewayListeners {
		return &configv1.GatewayListeners{
			Selections: []*configv1.WorkloadSelection{{Namespace: "edge", Labels: map[string]string{"app": app}}}, BackendCredential: backend,
			Listeners: []*configv1.GatewayListener{{Name: "https", Tls: meshtest.Any(&networking.ServerTLSSettings{CredentialNames: names})}},
		}
	}
	state := meshtest.State(t,
		meshtest.GatewayAPI(mesh.KindGatewayListeners, "edge", "mine", owner("edge", "kubernetes-gateway://edge/client",
			"kubernetes-gateway://edge/own", "kubernetes-gateway://team/granted", "kubernetes-gateway://team/pending")),
		meshtest.GatewayAPI(mesh.KindListenerSet, "team", "set", owner("edge", "", "kubernetes-gateway://team/set")),
		meshtest.GatewayAPI(mesh.KindGatewayListeners, "edge", "other", owner("other", "", "kubernetes-gateway://team/others")),
	)
	pair := credential.New(&secretv1.Credential{CertificateChain: []byte("chain"), PrivateKey: []byte("key")})
	known := map[credential.Ref]*credential.Credential{}
	for _, name := range []string{"edge/own", "edge/client", "team/granted", "team/set", "team/others", "team/unnamed", "edge/granted"} {
		known[credential.RefOf(identity, name[:4], name[5:])] = pair
	}
	state = state.WithCredentials(credential.NewSet(known))
	router := class.Key{Type: class.Router, Namespace: "edge", Labels: labels, Identity: identity}
	sidecar := router
	sidecar.Type = class.Sidecar
	for name, want := range map[string]bool{
		"edge/own": true, "edge/client": true, "team/granted": true, "team/set": true,
		"team/others": false, "team/unnamed": false, "edge/granted": false,
	} {
		m, err := secret.Translator{}.Build(input.NewView(&router, state).Reader(), "kubernetes-gateway://"+name)
		if err != nil || (m != nil) != want {
			t.Errorf("%s: got %v, %v", name, m != nil, err)
		}
		if m, err := (secret.Translator{}).Build(input.NewView(&sidecar, state).Reader(), "kubernetes-gateway://"+name); m != nil || err != nil {
			t.Errorf("%s: a sidecar gets it (%v)", name, err)
		}
	}
	r := input.NewView(&router, state).Reader()
	if _, err := (secret.Translator{}).Build(r, "kubernetes-gateway://team/pending"); !errors.Is(err, plan.ErrPending) {
		t.Errorf("not answered yet: %v", err)
	}
	for topic := range r.Dependencies() {
		if ref := topic.Credential(); topic.Subject == mesh.SubjectCredential &&
			ref != (credential.Ref{Identity: identity, Namespace: "team", Name: "pending"}) {
			t.Errorf("the engine follows %v", ref)
		}
	}
}
