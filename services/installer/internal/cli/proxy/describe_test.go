package proxy_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/contract"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

func TestAServiceThatIsNotThereIsNamedWhereItIs(t *testing.T) {
	m := clitest.New(t)
	m.SetFleet(nil, nil)
	name := clitest.File(t, "{apiVersion: v1, kind: Service, metadata: {name: reviews, namespace: default}}\n---\n"+
		"{apiVersion: v1, kind: Service, metadata: {name: ratings, namespace: shop}}\n")
	if out, _, err := m.Run("", "config", "apply", "-f", name); err != nil {
		t.Fatalf("%s, %v", out, err)
	}
	for service, want := range map[string]string{
		"revews":  `no Service revews in namespace default; did you mean "reviews"?`,
		"ratings": "no Service ratings in namespace default; there is one in shop: name it with -n",
		"nothing": "no Service nothing in namespace default; `fairlead config get",
	} {
		if _, _, err := m.Run("", "describe", "svc", service); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", service, err)
		}
	}
}

// TestDescribeARequest asks a canned xds-server who answers.
func TestDescribeARequest(t *testing.T) {
	m := clitest.New(t)
	m.SetFleet(nil, nil)
	match := func(name string, rule int, because string) contract.RouteMatch {
		return contract.RouteMatch{Route: contract.ExplainedObject{Kind: "HTTPRoute", Namespace: "shop", Name: name}, Rule: rule, Match: 1,
			Conditions: "everything", Because: because, To: "web:80"}
	}
	answers := map[string]func(url.Values) (any, error){"/debug/request": func(q url.Values) (any, error) {
		a := contract.RequestAnswer{Gateway: q.Get("gateway"), Request: fmt.Sprint(q["method"], q["url"], q["header"]), Port: 80}
		switch q.Get("url") {
		case "a/x":
			a.Listener, a.ListenerHost, a.Domain, a.Answers = "web", "*", "a", new(match("one", 1, ""))
			a.Lost, a.MoreLost = []contract.RouteMatch{match("two", 2, "later")}, 7
			a.Never = []contract.RouteMatch{match("three", 3, "taken")}
		case "b":
			a.Status, a.Because = 404, "no match"
		default:
			a.Because = "Istio's"
		}
		return a, nil
	}}
	dir := m.RunMesh(t, clitest.XDSPort(t, "", answers))
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"edge.shop", "--request", "PUT a/x", "--header", "a: b"}, []string{"request:  [PUT] [a/x] [a: b]\n",
			"gateway:  shop/edge, listener web, port 80, hostname *\n", "answers:  HTTPRoute shop/one rule 1, everything\nsends to: web:80\n",
			"match too, and come later:\n", "HTTPRoute shop/two rule 2", "later\n  and 7 more\n", "can never match a request for a:\n",
			"HTTPRoute shop/three rule 3"}},
		{[]string{"edge", "-n", "shop", "--request", "b"}, []string{"[GET] [b] []", "answers:  the gateway itself, status 404: no match\n"}},
		{[]string{"edge", "--request", "c"}, []string{"gateway:  default/edge", "answers:  no route of the Gateway API: Istio's\n"}},
		{[]string{"edge", "--request", "b", "-o", "json"}, []string{`"status": 404`}},
	} {
		out, _, err := clitest.Run("", append([]string{"describe", "gateway/" + c.args[0], "--run-dir", dir}, c.args[1:]...)...)
		if err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%v lacks %q:\n%s", c.args, want, out)
			}
		}
	}
	for _, args := range [][]string{{"--request", ""}, {"--header", "a: b"}, {"--request", "GET a b"}, {"--request", "a", "--header", "b"}} {
		_, code, err := clitest.Run("", append([]string{"describe", "gateway", "edge", "--run-dir", dir}, args...)...)
		if err == nil || code != process.ExitUsage {
			t.Errorf("%v: %d, %v", args, code, err)
		}
	}
}
