package authz_test

import (
	"encoding/json"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

func object(kind, namespace, name, manifest string) *configv1.Object {
	return &configv1.Object{Key: &configv1.ObjectKey{Kind: kind, Namespace: namespace, Name: name}, Manifest: []byte(manifest)}
}

// running is a mesh with the Pods a.shop, whose proxy is connected, and c.shop, which has none.
func running(t *testing.T) *clitest.Fixture {
	m := clitest.New(t)
	proxies := clitest.TwoProxies()
	for _, p := range proxies {
		p.Namespace, p.Identity = "shop", "spiffe://td/ns/shop/sa/"+p.GetNodeId()[len("sidecar~127.0.0.1~"):][:1]
	}
	m.SetFleet(proxies, nil)
	m.SetFiles([]*configv1.Object{
		object("Pod", "shop", "a", `{"metadata":{"name":"a","namespace":"shop","labels":{"app":"a"}},"status":{"podIP":"10.0.0.1"}}`),
		object("Pod", "shop", "b", `{"metadata":{"name":"b","namespace":"shop","labels":{"app":"b"}},"status":{"podIP":"10.0.0.2"}}`),
		object("Pod", "shop", "c", `{"metadata":{"name":"c","namespace":"shop","labels":{"app":"c"}}}`),
		object("Service", "shop", "bees", `{"metadata":{"name":"bees"},"spec":{"selector":{"app":"b"},`+
			`"ports":[{"name":"http","port":80,"targetPort":8080}]}}`),
		object("AuthorizationPolicy", "shop", "allow", `{"metadata":{"name":"allow"},"spec":{"rules":[`+
			`{"from":[{"source":{"principals":["td/ns/shop/sa/a"]}}],"to":[{"operation":{"ports":["8080"],"paths":["/{*}/x"]}}]}]}}`),
	}, nil)
	return m
}

func TestCheckOfARunningMesh(t *testing.T) {
	m := running(t)
	m.MustPrint(t, []string{"authz", "check", "bees"}, "ALLOW    allow.shop            1")
	m.MustPrint(t, []string{"authz", "check", "a", "bees", "GET", "/1/x"}, "allowed: rule 0 of AuthorizationPolicy shop/allow",
		"at       b.shop", "spiffe://td/ns/shop/sa/a", "no MeshConfig is known")
	m.MustPrint(t, []string{"authz", "check", "a", "bees", "GET", "/1/x", "--plaintext"}, "denied: no rule of the ALLOW policies")
	m.MustPrint(t, []string{"authz", "check", "c", "bees", "GET", "/1/x"}, "denied",
		"c.shop has no connected proxy, so it calls in plain text")
	m.MustPrint(t, []string{"x", "authz", "check", "a", "c"}, "allowed: c.shop has no connected proxy, so nothing enforces policies there")
	out, code, err := m.Run("", "authz", "check", "b", "bees", "-o", "json", "--exit-code")
	var answer struct {
		Results []struct{ Outcome, Action, RuleName string }
	}
	if json.Unmarshal([]byte(out[:strings.LastIndex(out, "}")+1]), &answer) != nil || code != process.ExitFailure || err == nil ||
		answer.Results[0].Outcome != "denied" || answer.Results[0].Action != "ALLOW" {
		t.Errorf("%d, %v: %s", code, err, out)
	}
}

func TestCheckRefuses(t *testing.T) {
	m := running(t)
	for args, want := range map[string]string{
		"a b GET":                          "after FROM and TO come METHOD and PATH",
		"a b GET x":                        "begin it with /",
		"a b GET /x --tcp":                 "a connection has no METHOD",
		"a b --header x":                   "write NAME=VALUE",
		"a b --header Host=x":              "name the host by --host x",
		"a b --header :path=/x":            "write METHOD and PATH",
		"a b --header x:y=z":               "a name has letters",
		"a b --header x=y\x00z":            "a value has no line break",
		"a b --claim x=[":                  "begins as JSON and is none",
		"a b --answer x=maybe":             "PROVIDER=allow or PROVIDER=refuse",
		"a b --source-ip 10.0.0.0/8":       "is no IP address",
		"a bees --port 81":                 "has the ports 80",
		"a b --claim x=1 --claim [x][y]=2": "has a value and no claims within",
	} {
		if _, code, err := m.Run("", append([]string{"authz", "check"}, strings.Fields(args)...)...); code != process.ExitUsage ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d, %v, want %s", args, code, err, want)
		}
	}
}

// TestHeadersOfOneNameAreJoined: in their order, whatever the case of their names is, and without the spaces around.
func TestHeadersOfOneNameAreJoined(t *testing.T) {
	m := running(t)
	m.SetFiles([]*configv1.Object{
		object("Pod", "shop", "b", `{"metadata":{"name":"b","namespace":"shop"}}`),
		object("AuthorizationPolicy", "shop", "p", `{"metadata":{"name":"p"},"spec":{"action":"DENY","rules":[`+
			`{"when":[{"key":"request.headers[x-a]","values":["2,1"]}]}]}}`),
	}, nil)
	for values, want := range map[[2]string]string{{"x-a= 2 ", "X-A=1"}: "denied", {"x-a=1", "X-A=2"}: "allowed"} {
		m.MustPrint(t, []string{"authz", "check", "outside", "b", "GET", "/", "--header", values[0], "--header", values[1]}, want)
	}
}

func TestCheckReadsStandardInput(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {}\n"
	out, _, err := clitest.Run(pod, "authz", "check", "-f", "-", "outside", "x", "GET", "/", "--claim", "[a][b]=1")
	if err != nil || !strings.Contains(out, "allowed: no policy applies") || !strings.Contains(out, "no token is verified") {
		t.Errorf("%v: %s", err, out)
	}
}

// What config-watcher has in the place of a policy whose namespace it cannot read is for the whole mesh.
func TestAHoldWithoutNamespaceIsForTheMesh(t *testing.T) {
	m := running(t)
	m.SetFiles([]*configv1.Object{
		object("Pod", "shop", "b", `{"metadata":{"name":"b","namespace":"shop"}}`),
		held(object("AuthorizationPolicy", "", "0-held-closed-1",
			`{"metadata":{"name":"0-held-closed-1"},"spec":{"action":"DENY","rules":[{}]}}`)),
	}, nil)
	m.MustPrint(t, []string{"authz", "check", "outside", "b", "GET", "/"},
		"denied: AuthorizationPolicy istio-system/0-held-closed-1 is broken and held closed",
		"no good version of it is known; `fairlead config status` says why")
}

func held(o *configv1.Object) *configv1.Object {
	o.HeldClosed = true
	return o
}

// TestAHeldRequestAuthenticationRefusesTokens tells it from one that has no rules because the user wrote none.
func TestAHeldRequestAuthenticationRefusesTokens(t *testing.T) {
	m := running(t)
	for _, closed := range []bool{true, false} {
		ra := object("RequestAuthentication", "shop", "r", `{"metadata":{"name":"r"},"spec":{}}`)
		ra.HeldClosed = closed
		m.SetFiles([]*configv1.Object{object("Pod", "shop", "b", `{"metadata":{"name":"b","namespace":"shop"}}`), ra}, nil)
		want := "allowed: no policy applies"
		if closed {
			want = "denied: RequestAuthentication shop/r is refused, and so tokens are"
		}
		m.MustPrint(t, []string{"authz", "check", "outside", "b", "GET", "/", "--claim", "iss=z"}, want)
	}
}

// TestProvidersWithoutAServiceDeny: a mesh that runs has no other services than those that config-watcher lists.
func TestProvidersWithoutAServiceDeny(t *testing.T) {
	m := running(t)
	entry := func(namespace string) *configv1.Object {
		return object("ServiceEntry", namespace, "ask", `{"metadata":{"name":"ask"},"spec":{"hosts":["ask.example"],"ports":[{"number":80}]}}`)
	}
	for want, services := range map[string][]*configv1.Object{
		"denied: provider ask refuses it":  nil,
		"asks ask":                         {entry("shop")},
		"denied: provider ask refuses it,": {entry("shop"), entry("other")},
	} {
		m.SetFiles(append(services,
			object("Pod", "shop", "b", `{"metadata":{"name":"b","namespace":"shop"}}`),
			object("ConfigMap", "istio-system", "istio", `{"metadata":{"name":"istio"},"data":{"mesh":`+
				`"extensionProviders: [{name: ask, envoyExtAuthzHttp: {service: ask.example, port: 80}}]"}}`),
			object("AuthorizationPolicy", "shop", "p", `{"metadata":{"name":"p"},"spec":{"action":"CUSTOM",`+
				`"provider":{"name":"ask"},"rules":[{}]}}`),
		), nil)
		m.MustPrint(t, []string{"authz", "check", "outside", "b", "GET", "/"}, want)
		if len(services) != 1 {
			m.MustPrint(t, []string{"authz", "check", "outside", "b", "GET", "/", "--answer", "ask=allow"}, "denied", `there is no service "ask.example"`)
		}
	}
}

// TestMissingKeysRefuseTokens: config-watcher says of an object whether the keys of its issuers are there.
func TestMissingKeysRefuseTokens(t *testing.T) {
	m := running(t)
	for want, rules := range map[string]string{
		"denied: RequestAuthentication shop/r has no key that verifies tokens: no answer: the answer is 401": `{"issuer":"keyless"}`,
		"note: keys of RequestAuthentication shop/r are missing":                                             `{"issuer":"keyless"},{"issuer":"j"}`,
	} {
		m.SetFiles([]*configv1.Object{
			object("Pod", "shop", "b", `{"metadata":{"name":"b","namespace":"shop"}}`),
			object("RequestAuthentication", "shop", "r", `{"metadata":{"name":"r"},"spec":{"jwtRules":[`+rules+`]}}`),
		}, nil)
		m.MustPrint(t, []string{"authz", "check", "outside", "b", "GET", "/", "--claim", "iss=keyless"}, want)
	}
}
