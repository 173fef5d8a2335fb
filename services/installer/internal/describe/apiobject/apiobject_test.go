package apiobject_test

import (
	"strings"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
	"fairlead.dev/services/installer/internal/describe/apiobject"
	"fairlead.dev/services/installer/internal/kinds"
)

func condition(typ, status, reason, message string) *configv1.Condition {
	return &configv1.Condition{Type: typ, Status: status, Reason: reason, Message: message}
}

// mesh has Gateway infra/edge, with a ListenerSet that it does not allow, and routes.
func mesh(t *testing.T) *clitest.Fixture {
	m := clitest.New(t)
	object := func(kind, namespace, name, spec string) *configv1.Object {
		return &configv1.Object{Key: kinds.Key(kind, namespace, name), Source: "file", Location: "m.yaml:1", Manifest: []byte(`{"spec":` + spec + `}`)}
	}
	class := object("GatewayClass", "", "istio", `{"controllerName":"istio.io/gateway-controller"}`)
	m.SetFiles([]*configv1.Object{
		class,
		object(kinds.APIGateway, "infra", "edge", `{"gatewayClassName":"istio","listeners":[{"name":"web","port":80,"protocol":"HTTP","hostname":"*.a"}]}`),
		object(kinds.APIGateway, "infra", "foreign", `{"gatewayClassName":"other","listeners":[]}`),
		object("Gateway", "infra", "edge", `{"servers":[]}`),
		object("ListenerSet", "shop", "more", `{"parentRef":{"name":"edge","namespace":"infra"},"listeners":[{"name":"x","port":81,"protocol":"HTTP"}]}`),
		object("HTTPRoute", "shop", "web", `{"hostnames":["web.a"],"parentRefs":[{"name":"edge","namespace":"infra","sectionName":"web"},`+
			`{"name":"gone"},{"name":"foreign","namespace":"infra"}],"rules":[{"name":"one","matches":[{"path":{"type":"PathPrefix","value":"/x/"},`+
			`"method":"PUT","headers":[{"name":"h","value":"v"}],"queryParams":[{"type":"RegularExpression","name":"q","value":"."}]},{}],`+
			`"filters":[{"type":"CORS"},{"type":"RequestMirror","requestMirror":{"backendRef":{"name":"copy","port":80}}}],`+
			`"backendRefs":[{"name":"web","port":80,"weight":3},{"name":"gone","namespace":"far","port":81,"weight":1}]}]}`),
		object("GRPCRoute", "shop", "rpc", `{"parentRefs":[{"name":"edge","namespace":"infra"}],"rules":[{"matches":[{"method":{"service":"a.B"}}]}]}`),
		object("BackendTLSPolicy", "shop", "tls", `{"targetRefs":[{"kind":"Service","name":"web"}],"validation":{"hostname":"web.a"}}`),
	}, nil)
	unresolved := condition("ResolvedRefs", "False", "BackendNotFound",
		"spec.rules[0].filters[1].requestMirror.backendRef: no copy; spec.rules[0].backendRefs[1]: no grant; make one")
	good := condition("Accepted", "True", "Accepted", "")
	status := func(kind, namespace, name string) *configv1.ObjectStatus {
		return &configv1.ObjectStatus{Key: kinds.Key(kind, namespace, name)}
	}
	edge := status(kinds.APIGateway, "infra", "edge")
	edge.Conditions = []*configv1.Condition{good, condition("Programmed", "True", "Programmed", "acknowledged by edge-0")}
	edge.Addresses = []string{"192.0.2.1"}
	edge.Listeners = []*configv1.ListenerStatus{{Name: "web", AttachedRoutes: 7, Conditions: []*configv1.Condition{
		condition("Conflicted", "False", "NoConflicts", ""), condition("ResolvedRefs", "False", "RefNotPermitted", "no grant for the Secret")}}}
	more := status("ListenerSet", "shop", "more")
	more.Conditions = []*configv1.Condition{condition("Accepted", "False", "NotAllowed", "allowedListeners says None")}
	web := status("HTTPRoute", "shop", "web")
	web.Conditions = []*configv1.Condition{good, unresolved, condition("Programmed", "True", "Programmed", "2 of 2")}
	web.Parents = []*configv1.ParentStatus{{Parent: "Gateway infra/edge, section web", Conditions: []*configv1.Condition{good, unresolved}}}
	rpc := status("GRPCRoute", "shop", "rpc")
	rpc.Conditions = []*configv1.Condition{condition("Accepted", "False", "NotAllowedByListeners", "no")}
	rpc.Parents = []*configv1.ParentStatus{{Parent: "Gateway infra/edge", Conditions: rpc.GetConditions()}}
	foreign := status(kinds.APIGateway, "infra", "foreign")
	istio := &configv1.ObjectStatus{Key: class.GetKey(), Conditions: []*configv1.Condition{good}}
	tls := status("BackendTLSPolicy", "shop", "tls")
	tls.Conditions = []*configv1.Condition{good}
	tls.Parents = []*configv1.ParentStatus{{Parent: "Gateway infra/edge",
		Conditions: []*configv1.Condition{condition("Accepted", "False", "Conflicted", "older")}}}
	m.SetStatuses(edge, more, web, rpc, foreign, istio, tls)
	return m
}

func TestObjectsAreDescribed(t *testing.T) {
	m := mesh(t)
	for _, tc := range []struct {
		kind, name string
		want       []string
		not        string
	}{
		{"HTTPRoute", "web.shop", []string{
			"HTTPRoute shop/web (m.yaml:1)\n  Hosts: web.a\n  Programmed: 2 of 2\n",
			"Parent Gateway infra/edge, section web: Accepted; not ResolvedRefs (BackendNotFound): see the rules\n",
			"Parent Gateway shop/gone: it is not there\n", "Parent Gateway infra/foreign: not of this mesh: its class is another controller's\n",
			"Rule 1 (one): path /x/*, method PUT, header h = v, query parameter q like . or everything\n",
			"filter CORS\n", "filter RequestMirror to Service shop/copy, port 80: no copy\n",
			"to Service shop/web, port 80, weight 3\n", "to Service far/gone, port 81: not resolved: no grant; make one\n"}, ""},
		{"GRPCRoute", "rpc.shop", []string{"method a.B/*", "not Accepted (NotAllowedByListeners): no"}, ""},
		{kinds.APIGateway, "edge.infra", []string{
			"Gateway infra/edge (m.yaml:1)\n  Class: istio\n  Addresses: 192.0.2.1\n  Accepted\n  Programmed: acknowledged by edge-0\n",
			"Listener web: HTTP, port 80, host *.a, routes: 7; not ResolvedRefs (RefNotPermitted): no grant for the Secret\n",
			"HTTPRoute shop/web, attached by section web\n", "GRPCRoute shop/rpc, not attached: NotAllowedByListeners: no\n",
			"ListenerSet shop/more, not attached: NotAllowed: allowedListeners says None\n"}, "Conflicted"},
		{kinds.APIGateway, "foreign.infra", []string{"nothing of this mesh serves it"}, ""},
		{"ListenerSet", "more.shop", []string{"not Accepted (NotAllowed): allowedListeners says None\n", "Parent Gateway infra/edge\n",
			"Listener x: HTTP, port 81"}, ""},
		{"GatewayClass", "istio", []string{"Controller: istio.io/gateway-controller\n  Gateways: infra/edge\n"}, "foreign"},
		{"BackendTLSPolicy", "tls.shop", []string{"Hosts: web.a\n  Targets: Service shop/web\n",
			"Parent Gateway infra/edge: not Accepted (Conflicted): older"}, ""},
	} {
		d, err := apiobject.Ask(t.Context(), m.Mesh(), tc.kind, tc.name, "")
		if err != nil {
			t.Errorf("%s %s: %v", tc.kind, tc.name, err)
			continue
		}
		var out strings.Builder
		if err := d.Print(&out); err != nil {
			t.Fatal(err)
		}
		for _, want := range tc.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is not in\n%s", want, out.String())
			}
		}
		if tc.not != "" && strings.Contains(out.String(), tc.not) {
			t.Errorf("%q is in\n%s", tc.not, out.String())
		}
	}
}

func TestAnObjectThatIsNotThereIsNamedWhereItIs(t *testing.T) {
	m := mesh(t)
	for name, want := range map[string]string{
		"HTTPRoute/wbe.shop":            `there is no HTTPRoute shop/wbe in the mesh; did you mean "web"?`,
		"HTTPRoute/web":                 "there is no HTTPRoute default/web in the mesh; there is one in namespace shop: name it with -n",
		"TCPRoute/x":                    "`fairlead config get tcproute -A`",
		kinds.APIGateway + "/edg.infra": `there is no Gateway infra/edg of the Gateway API in the mesh; did you mean "edge"?`,
	} {
		kind, object, _ := strings.Cut(name, "/")
		if _, err := apiobject.Ask(t.Context(), m.Mesh(), kind, object, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDescribeCommands(t *testing.T) {
	m := mesh(t)
	m.MustPrint(t, []string{"describe", "httproute/web", "-n", "shop"}, "HTTPRoute shop/web")
	m.MustPrint(t, []string{"describe", "gateway/edge.infra"}, "Gateway infra/edge")
	m.MustPrint(t, []string{"describe", "gatewayclass", "istio", "-o", "json"}, `"controller": "istio.io/gateway-controller"`)
}
