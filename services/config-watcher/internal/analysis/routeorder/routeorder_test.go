package routeorder_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fairlead.dev/services/config-watcher/internal/analysis/routeorder"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate"
)

const gateway = `{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: shop}, spec:
  {gatewayClassName: istio, listeners: [{name: l, port: 80, protocol: HTTP}]}}`

// route is an HTTPRoute of Gateway shop/g; matches are those of its rules, one each, and created its age.
func route(name, created, hostname string, matches ...string) string {
	var rules []string
	for _, m := range matches {
		rules = append(rules, "{matches: [{"+m+"}]}")
	}
	return fmt.Sprintf("{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: %s, "+
		"namespace: shop, creationTimestamp: %s}, "+
		"spec: {parentRefs: [{name: g}], hostnames: [%s], rules: [%s]}}", name, created, hostname, strings.Join(rules, ", "))
}

func path(value string) string { return "path: {type: PathPrefix, value: " + value + "}" }

func exact(value string) string { return "path: {type: Exact, value: " + value + "}" }

// short are names for what all cases have in common.
var short = strings.NewReplacer("at listener shop/g/l", "at L", "spec.rules[0].matches[0]", "M", "AttachedRoute", "", "HTTPRoute shop/", "")

func TestAnalyze(t *testing.T) {
	const old = "2020-01-01T00:00:00Z"
	there := route("old", old, "'*.web.com'", path("/"), path("/a"))
	for name, c := range map[string]struct {
		// server are the objects of an API server, and file those of a file.
		server, file []string
		want         []string
	}{
		"nothing new": {[]string{gateway, there}, nil, nil},
		"a path of another route": {[]string{gateway, there}, []string{route("new", "null", "'*.web.com'", path("/a/b"))}, []string{
			"Takes new M: takes, of requests for host *.web.com at L" +
				", all of path /a/b/* from old rule 2 (path /a/*): it has the longer path prefix",
			"Takes new M: takes, of requests for host *.web.com at L, all of path /a/b/* from old rule 1 (everything): it has a path prefix",
		}},
		"a younger route for the same": {[]string{gateway, there}, []string{route("new", "null", "'*.web.com'", path("/a"))}, []string{
			"Unreachable new M: no request for host *.web.com at L" +
				" reaches it: old rule 2 (path /a/*) takes all that it matches, and is of the older route",
		}},
		"a host of a wildcard": {[]string{gateway, there}, []string{route("new", "null", "b.web.com", exact("/x"))}, []string{
			"Takes new spec.hostnames: takes all requests for host b.web.com at L" +
				" from the routes for *.web.com, such as old: what no rule for b.web.com matches gets 404",
		}},
		"a host that has routes": {[]string{gateway, there, route("own", old, "b.web.com", exact("/y"))},
			[]string{route("new", "null", "b.web.com", exact("/x"))}, nil},
		"all of one file": {nil, []string{gateway, there, route("new", "null", "'*.web.com'", path("/a/b"))}, nil},
		"its own rules": {nil, []string{gateway, route("one", "null", "a.com", path("/a"), path("/a/b"), path("/a"))}, []string{
			"Unreachable one spec.rules[2].matches[0]: no request for host a.com at L" +
				" reaches it: one rule 1 (path /a/*) takes all that it matches, and is of an earlier rule",
		}},
		"another host": {[]string{gateway, there}, []string{route("new", "null", "a.com", path("/a"))}, nil},
	} {
		var objects []routeorder.Object
		for i, texts := range [][]string{c.server, c.file} {
			docs, problems := manifest.Parse("", []byte(strings.Join(texts, "\n---\n")))
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			for _, doc := range docs {
				o, err := validate.Document(doc)
				if err != nil {
					t.Fatal(err)
				}
				objects = append(objects, routeorder.Object{Object: o, File: []string{"", "new.yaml"}[i]})
			}
		}
		var got []string
		for _, f := range routeorder.Analyze(routeorder.Config{Domain: "cluster.local", Now: time.Unix(1e9*2, 0)}, objects) {
			got = append(got, short.Replace(fmt.Sprintf("%s %s %s: %s", f.Code, f.Key.Name, f.Field, f.Reason)))
			if f.Remedy == "" {
				t.Errorf("%s: no remedy", name)
			}
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}
