package authzview_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/services/installer/internal/authzview"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

// shop has a caller, web, and two versions of reviews behind a Service, of which one has a policy of its own.
const shop = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    trustDomain: td1
    pathNormalization: {normalization: MERGE_SLASHES}
    extensionProviders:
    - name: opa
      envoyExtAuthzGrpc: {service: opa.shop.svc.cluster.local, port: 9000}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {metadata: {labels: {app: web}}, spec: {serviceAccountName: web, containers: [{name: app}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: reviews-v1, namespace: shop}
spec: {template: {metadata: {labels: {app: reviews, version: v1}}, spec: {containers: [{name: app, ports: [{name: main, containerPort: 9080}]}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: reviews-v2, namespace: shop}
spec: {template: {metadata: {labels: {app: reviews, version: v2}}, spec: {containers: [{name: app, ports: [{name: main, containerPort: 9081}]}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {selector: {app: reviews}, ports: [{name: http, port: 80, targetPort: main}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allow-web, namespace: shop}
spec:
  selector: {matchLabels: {app: reviews}}
  rules:
  - from: [{source: {principals: [td1/ns/shop/sa/web]}}]
    to: [{operation: {methods: [GET], paths: ["/reviews/*"]}}]
  - from: [{source: {requestPrincipals: ["https://issuer/*"]}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny-admin, namespace: istio-system}
spec: {action: DENY, rules: [{to: [{operation: {paths: ["/reviews/admin*"]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec:
  selector: {matchLabels: {version: v2}}
  action: CUSTOM
  provider: {name: opa}
  rules: [{to: [{operation: {ports: ["9081"]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: broken, namespace: bad}
spec: {rules: [{to: [{operation: {pathes: [/]}}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: victim, namespace: bad}
spec: {containers: [{name: istio-proxy}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: bad}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec: {selector: {matchLabels: {app: reviews}}, jwtRules: [{issuer: "https://issuer", audiences: [shop]}]}
`

// accepted is an Input without standard input, of which config-watcher refuses nothing.
var accepted = authzview.Input{Refused: func([]string, []byte) (map[string]string, error) { return nil, nil }}

func load(t *testing.T, text string) *authzview.Mesh {
	t.Helper()
	m, err := authzview.Load([]string{clitest.File(t, text)}, accepted)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func check(t *testing.T, m *authzview.Mesh, from, to string, r authzview.Request) *authzview.Answer {
	t.Helper()
	caller, err := m.Caller(from, "")
	if err != nil {
		t.Fatal(err)
	}
	target, err := m.Target(to, "")
	if err != nil {
		t.Fatal(err)
	}
	a, err := m.Check(caller, target, r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestCheck(t *testing.T) {
	m := load(t, shop)
	get := func(path string) authzview.Request { return authzview.Request{Method: "GET", Path: path} }
	token := func(claims map[string]any) authzview.Request {
		return authzview.Request{Method: "GET", Path: "/x", Claims: claims}
	}
	good := map[string]any{"iss": "https://issuer", "sub": "alice", "aud": "shop"}
	others, strange := map[string]any{"iss": "https://issuer"}, map[string]any{"iss": "x"}
	answered := get("/reviews/1")
	answered.Answers = map[string]authz.Answer{"opa": authz.Refuses}
	for name, c := range map[string]struct {
		from, to string
		request  authzview.Request
		// want are the outcome, the reason, and notes of the first result.
		want []string
	}{
		"an ALLOW rule":                  {"web", "reviews-v1", get("/reviews/1"), []string{"allowed", "rule 0 of AuthorizationPolicy shop/allow-web (ALLOW)"}},
		"a path is normalised":           {"web", "reviews-v1", get("//reviews//1"), []string{"allowed", "policies see /reviews/1"}},
		"a DENY rule":                    {"web", "reviews-v1", get("/reviews/%61dmin"), []string{"denied", "istio-system/deny-admin"}},
		"no rule":                        {"sa/other.shop", "reviews-v1", get("/reviews/1"), []string{"denied", "no rule of the ALLOW", "no workload runs as"}},
		"nobody":                         {"outside", "reviews-v1", get("/reviews/1"), []string{"denied", "no rule"}},
		"a valid token":                  {"outside", "reviews-v1", token(good), []string{"allowed", "rule 1 of", "the claims count if the token is valid"}},
		"a token for others":             {"outside", "reviews-v1", token(others), []string{"denied", "takes tokens for shop alone"}},
		"a token of an unknown issuer":   {"outside", "reviews-v1", token(strange), []string{"denied", `takes tokens of issuer "x"`}},
		"a token that nobody verifies":   {"outside", "web", token(good), []string{"allowed", "no RequestAuthentication applies"}},
		"a provider is asked":            {"web", "reviews-v2", get("/reviews/1"), []string{"allowed", "the port (--port)"}},
		"a provider of a Service's port": {"web", "reviews.shop.svc.cluster.local", get("/reviews/1"), []string{"allowed"}},
		"a refused object closes":        {"web", "victim", get("/"), []string{"denied", "AuthorizationPolicy bad/broken is refused", "pathes"}},
		"mutual TLS":                     {"none", "victim", get("/"), []string{"denied", "takes mutual TLS alone (bad/strict)"}},
		"a SPIFFE id":                    {"spiffe://td1/ns/shop/sa/web", "reviews-v1", get("/reviews/1"), []string{"allowed"}},
		"what is not said":               {"web", "reviews-v1", authzview.Request{}, []string{"denied", "the method, taken as GET, the path, taken as /"}},
		"TCP":                            {"web", "reviews-v1", authzview.Request{TCP: true}, []string{"denied", "deny-admin"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			a := check(t, m, c.from, c.to, c.request)
			if err := a.Print(&out); err != nil {
				t.Fatal(err)
			}
			if a.Results[0].Outcome != c.want[0] {
				t.Errorf("%s, want %s", a.Results[0].Outcome, c.want[0])
			}
			for _, w := range c.want[1:] {
				if !strings.Contains(out.String(), w) {
					t.Errorf("%q is missing:\n%s", w, out.String())
				}
			}
		})
	}

	// Two classes are behind the Service; one asks a provider about its own port.
	a := check(t, m, "web", "svc/reviews", get("/reviews/1"))
	if len(a.Results) != 2 || a.Results[0].Outcome != "allowed" || a.Results[1].Outcome != "asks" || a.Results[1].Providers[0] != "opa" ||
		a.Results[1].Seen.Port != 9081 {
		t.Errorf("%+v", a.Results)
	}
	a = check(t, m, "web", "svc/reviews", answered)
	if a.Results[1].Outcome != "denied" || a.Results[1].Provider != "opa" {
		t.Errorf("%+v", a.Results[1])
	}
}

func TestNames(t *testing.T) {
	m := load(t, shop)
	for name, want := range map[string]string{
		"reviews":      "reviews-v1.shop reviews-v2.shop",
		"reviews.shop": "reviews-v1.shop reviews-v2.shop",
		"deploy/web":   "web.shop",
		"reviews-v1":   "reviews-v1.shop",
		"pod/victim":   "victim.bad",
		"svc/web":      `no workload and no Service is named "svc/web"`,
		"gateway/web":  "names no workload",
		"reviewz-v1":   `did you mean "reviews-v1"?`,
		"v":            "victim.bad",
		"svc/reviews":  "reviews-v1.shop reviews-v2.shop",
		"":             "names no workload",
	} {
		got := ""
		if target, err := m.Target(name, ""); err != nil {
			got = err.Error()
		} else {
			var ids []string
			for _, w := range target.Workloads {
				ids = append(ids, w.ID())
			}
			got = strings.Join(ids, " ")
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestNamesOfControllers: one of exactly the name goes before longer names, and a kind asks for the whole name.
func TestNamesOfControllers(t *testing.T) {
	pods := ""
	for _, name := range []string{"api-5d4fcbb77-x2k9z", "api-5d4fcbb77-b4mqz", "api-admin-7d9fbc-zz2xk", "api-admin-0", "server-0"} {
		pods += "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: shop}\nspec: {containers: [{name: istio-proxy}]}\n"
	}
	deployments := ""
	for _, name := range []string{"web", "web-admin"} {
		deployments += "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: " + name + ", namespace: shop}\n" +
			"spec: {template: {spec: {serviceAccountName: " + name + "}}}\n"
	}
	m := load(t, pods+deployments)
	for name, want := range map[string]string{
		"api":             "api-5d4fcbb77-b4mqz api-5d4fcbb77-x2k9z",
		"deploy/api":      "api-5d4fcbb77-b4mqz api-5d4fcbb77-x2k9z",
		"api-admin":       "api-admin-0 api-admin-7d9fbc-zz2xk",
		"sts/server":      "server-0",
		"web":             "web",
		"deploy/web":      "web",
		"ser":             "server-0",
		"deploy/ser":      `no workload and no Service is named "deploy/ser"; so begins the name of server-0.shop`,
		"deploy/ser.shop": `no workload and no Service is named "deploy/ser.shop"; so begins the name of server-0.shop`,
		"deploy/web-admi": `"deploy/web-admi"; so begins the name of web-admin.shop`,
	} {
		got := ""
		if target, err := m.Target(name, ""); err != nil {
			got = err.Error()
		} else {
			var names []string
			for _, w := range target.Workloads {
				names = append(names, w.Name)
			}
			got = strings.Join(names, " ")
		}
		if isError := strings.Contains(want, `"`); got != want && (!isError || !strings.Contains(got, want)) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestConfigWatcherJudges: what config-watcher refuses is closed, and nothing else is.
func TestConfigWatcherJudges(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop}\nspec: {containers: [{name: istio-proxy}]}\n"
	const objects = pod + "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\n" +
		"spec: {rules: [{}]}\n"
	for name, c := range map[string]struct {
		text    string
		refused map[string]string
		err     error
		want    string
	}{
		"accepted":           {objects, nil, nil, "allowed"},
		"refused":            {objects, map[string]string{"-:6": "spec.x: wrong"}, nil, "denied"},
		"another is refused": {objects, map[string]string{"-:1": "spec.x: wrong", "f:6": "y"}, nil, "allowed"},
		"it cannot judge":    {objects, nil, errors.New("no program"), "no program"},
		"nothing to judge":   {pod, nil, errors.New("no program"), "allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := authzview.Load([]string{"-"}, authzview.Input{
				Stdin: func() ([]byte, error) { return []byte(c.text), nil },
				Refused: func(files []string, stdin []byte) (map[string]string, error) {
					if !slices.Equal(files, []string{"-"}) || string(stdin) != c.text {
						t.Errorf("to judge are %v, %q", files, stdin)
					}
					return c.refused, c.err
				},
			})
			if err != nil {
				if err.Error() != c.want {
					t.Error(err)
				}
				return
			}
			a := check(t, m, "outside", "p.shop", authzview.Request{Method: "GET", Path: "/"})
			if got := a.Results[0].Outcome; got != c.want || got == "denied" && !strings.Contains(fmt.Sprint(a), "spec.x: wrong") {
				t.Errorf("%+v", a)
			}
		})
	}
}

// TestServerNamesAreLowered: Envoy compares the server name that a client asks for in small letters.
func TestServerNamesAreLowered(t *testing.T) {
	m := load(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: shop}\nspec: {containers: [{name: istio-proxy}]}\n---\n"+
		"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\n"+
		"spec: {rules: [{when: [{key: connection.sni, values: [a.example]}]}]}\n")
	for sni, want := range map[string]string{"A.Example": "allowed", "b.example": "denied"} {
		if got := check(t, m, "outside", "p.shop", authzview.Request{TCP: true, SNI: sni, Port: 80}).Results[0].Outcome; got != want {
			t.Errorf("%s is %s, want %s", sni, got, want)
		}
	}
}
