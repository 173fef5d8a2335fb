package validate

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/config-watcher/internal/decode"
)

// TestHostileVirtualServices has VirtualServices that an attacker might write to break a proxy, to reach another's
// traffic or to forge logs. want is a regular expression for the refusal; empty means harmless and accepted.
func TestHostileVirtualServices(t *testing.T) {
	const ok = "route: [{" + dest + "}]"
	// text quotes any string as YAML.
	text := func(s string) string {
		out, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	host := func(h string) string {
		return of("VirtualService", "{hosts: ["+text(h)+"], http: [{"+ok+"}]}")
	}
	uri := func(kind, s string) string { return http("match: [{uri: {" + kind + ": " + text(s) + "}}], " + ok) }
	set := func(name, value string) string {
		return http(ok + ", headers: {request: {set: {" + text(name) + ": " + text(value) + "}}}")
	}
	for _, c := range []struct{ name, yaml, want string }{
		{"host: too long", host(strings.Repeat("a.", 128) + "com"), `hosts\[0\]: .*not a valid host`},
		{"host: long label", host(strings.Repeat("a", 64) + ".com"), `not a valid host`},
		{"host: line break", host("a\nb.com"), `not a valid host`},
		{"host: NUL", host("a\x00b.com"), `not a valid host`},
		{"host: port", host("a.com:80"), `not a valid host`},
		{"host: path", host("a.com/b"), `not a valid host`},
		{"host: user", host("user@a.com"), `not a valid host`},
		{"host: not ASCII", host("аpple.com"), `not a valid host`},
		{"host: percent", host("a%2ecom"), `not a valid host`},
		{"host: empty label", host("a..com"), `not a valid host`},
		{"host: regex", host(".*"), `not a valid host`},
		{"host: brackets", host("[::1]"), `not a valid host`},
		{"host: bare suffix", host("*com"), `warns: only a wildcard that is the whole first label`},
		{"destination: wildcard", http("route: [{destination: {host: '*'}}]"), `a destination cannot be every host`},
		{"destination: bad wildcard", http("route: [{destination: {host: 'a.*.com'}}]"), `not a valid host`},
		{"destination: cluster name", http("route: [{destination: {host: 'outbound|80||b.com'}}]"), `not a valid host`},
		{"subset: cluster name", http("route: [{destination: {host: a, subset: 'v1|other'}}]"), `not a valid subset name`},

		{"regex: nested quantifiers", uri("regex", "/("+strings.Repeat("(a*)*", 10)+")*"), ""},
		{"regex: long", uri("regex", "/"+strings.Repeat("a", 1024)), `1025 bytes: the limit is 1024`},
		{"regex: deep", uri("regex", strings.Repeat("(", 1000)+strings.Repeat(")", 1000)), `the limit is`},
		{"regex: deeper than the parser", uri("regex", strings.Repeat("(?:", 340)+"a"), `not a regular expression`},
		{"regex: huge counts", uri("regex", "((a{1,1000}){1,1000}){1,1000}"), `not a regular expression`},
		{"regex: large program", uri("regex", strings.Repeat("[ac]{100}", 85)), `instructions: the limit`},
		{"regex: look-behind", uri("regex", "(?<=a)b"), `not a regular expression`},
		{"regex: no byte", uri("regex", `\x{10FFFF}`), `is no byte`},
		{"regex: in a header", http("match: [{headers: {x: {regex: '(a'}}}], " + ok), `headers.x.regex: .*not a regular expression`},
		{"regex: in a query parameter", http("match: [{queryParams: {x: {regex: '(a'}}}], " + ok),
			`queryParams.x.regex: .*not a regular expression`},
		{"regex: in an origin", http(ok + ", corsPolicy: {allowOrigins: [{regex: '(a'}]}"),
			`allowOrigins\[0\].regex: .*not a regular expression`},
		{"regex: in a rewrite", http(ok + ", rewrite: {uriRegexRewrite: {match: '(a', rewrite: b}}"),
			`uriRegexRewrite.match: .*not a regular expression`},
		{"regex: large, in a rewrite", http(ok + ", rewrite: {uriRegexRewrite: {match: '" + strings.Repeat("[ac]{100}", 85) + "', rewrite: b}}"),
			`instructions: the limit`},

		{"path: line break", uri("exact", "/a\r\nhost: b"), `uri.exact: .*control character`},
		{"path: NUL", uri("prefix", "/a\x00"), `uri.prefix: .*control character`},
		{"path: query", uri("exact", "/a?b=c"), `warns: without the query`},
		{"path: empty", uri("exact", ""), `warns: no path is empty`},
		{"path: escapes are text", uri("prefix", "/a%2fb/../c"), ""},
		{"path: long", uri("prefix", "/"+strings.Repeat("a", 16<<10)), `longer than 16 KiB`},
		{"query parameter: line break", http("match: [{queryParams: {" + text("a\nb") + ": {exact: c}}}], " + ok), `control character`},
		{"header value to match: line break", http("match: [{headers: {x: {exact: " + text("a\nb") + "}}}], " + ok), `control character`},

		{"header: colon", set("x: y", "a"), `not a valid header name`},
		{"header: line break in the name", set("x\r\nhost", "a"), `not a valid header name`},
		{"header: empty name", set("", "a"), `not a valid header name`},
		{"header: long name", set(strings.Repeat("x", 257), "a"), `not a valid header name`},
		{"header: line break in the value", set("x", "a\r\nhost: b"), `contains a line break`},
		{"header: NUL in the value", set("x", "a\x00"), `contains a line break or a NUL`},
		{"header: long value", set("x", strings.Repeat("a", 16<<10+1)), `longer than 16 KiB`},
		{"header: lone percent", set("x", "100% sure"), `percent sign begins no command`},
		{"header: escaped percent", set("x", "100%% sure"), ""},
		{"header: unknown command", set("x", "%FOO%"), `unknown command %FOO%`},
		{"header: argument of a command", set("x", "%REQ(a b)%"), `cannot stand behind`},
		{"header: the proxy's environment", set("x", "a %ENVIRONMENT(AWS_SECRET_ACCESS_KEY)%"),
			`headers.request.set.x: .*%ENVIRONMENT% tells of the proxy itself`},
		{"header: environment of a response", http(ok + ", headers: {response: {add: {x: '%ENVIRONMENT(A)%'}}}"),
			`headers.response.add.x: .*%ENVIRONMENT%`},
		{"header: environment at a destination", http("route: [{" + dest + ", headers: {request: {add: {x: '%ENVIRONMENT(A)%'}}}}]"),
			`route\[0\].headers.request.add.x: .*%ENVIRONMENT%`},
		{"header: filters' state", set("x", "%FILTER_STATE(a)%"), `%FILTER_STATE% tells of the proxy itself`},
		{"header: environment by another command", set("x", `%COALESCE({"operators":[{"command":"ENVIRONMENT","param":"A"}]})%`),
			`percent sign begins no command|unknown command`},
		{"header: a file", set("x", "%FILE_CONTENT(/etc/passwd)%"), `unknown command`},
		{"header: the caller's certificate", set("x", "%DOWNSTREAM_PEER_URI_SAN% %REQ(x-id)% %DYNAMIC_METADATA(a:b)%"), ""},
		{"header: unfinished command", set("x", "%REQ(a"), `percent sign begins no command`},
		{"header: path", set(":path", "/b"), `pseudo-headers cannot be changed`},
		{"header: unknown pseudo", set(":x", "/b"), `pseudo-headers cannot be changed`},
		{"header: removed authority", http(ok + ", headers: {request: {remove: [':authority']}}"), `cannot route without it`},
		{"header: host of a response", http(ok + ", headers: {response: {set: {host: a}}}"), `a response has no such header`},
		{"header: status of a response", http(ok + ", headers: {response: {add: {':status': '200'}}}"), `pseudo-headers cannot be changed`},
		{"header: at a destination", http("route: [{" + dest + ", headers: {response: {add: {x: '%FOO%'}}}}]"),
			`route\[0\].headers.response.add.x: .*unknown command`},
		{"authority: command", set("host", "%REQ(x)%"), `warns: headers.request.set.host: not a host`},
		{"authority: user", http(ok + ", rewrite: {authority: 'user@b.com'}"), `warns: rewrite.authority: not a host`},
		{"authority: line break", http(ok + ", rewrite: {authority: \"b.com\\r\\nx: y\"}"), `rewrite.authority: .*contains a line break`},
		{"authority: with a port", http(ok + ", rewrite: {authority: '[::1]:8080'}"), ""},
		{"pseudo-header to match", http("match: [{headers: {':status': {exact: a}}}], " + ok), `warns: a request has no status`},
		{"field as a header to match", http("match: [{headers: {method: {exact: GET}}}], " + ok), ""},

		{"redirect: to another host", http("redirect: {uri: '@evil.com'}"), `redirect.uri: .*not a path`},
		{"redirect: line break", http("redirect: {uri: \"/a\\r\\nset-cookie: b\"}"), `redirect.uri: .*contains a line break`},
		{"redirect: authority", http("redirect: {authority: 'a.com/b?'}"), `warns: redirect.authority: not a host`},
		{"redirect: script", http("redirect: {scheme: javascript, uri: /x}"), `unknown scheme`},
		{"rewrite: line break", http(ok + ", rewrite: {uri: \"/a HTTP/1.1\\r\\nx: y\"}"), `rewrite.uri: .*contains a line break`},
		{"rewrite: substitution with a line break", http(ok + ", rewrite: {uriRegexRewrite: {match: a, rewrite: \"b\\n\"}}"),
			`rewrite: .*contains a line break`},
		{"rewrite: substitution ends in a backslash", http(ok + ", rewrite: {uriRegexRewrite: {match: a, rewrite: 'b\\'}}"),
			`neither a digit nor a backslash`},
		{"direct response: too large", http("directResponse: {status: 200, body: {string: " + strings.Repeat("a", 1<<20+1) + "}}"),
			`more than 1 MiB`},
		{"route name: line break", http("name: \"a\\nb\", " + ok), `name: .*control character`},
		{"match name: long", http("match: [{name: " + strings.Repeat("a", 257) + ", port: 80}], " + ok), `longer than 256 bytes`},
		{"statPrefix: line break", http("match: [{port: 80, statPrefix: \"a\\nb\"}], " + ok), `statPrefix: .*control character`},
		{"origin: line break", http(ok + ", corsPolicy: {allowOrigins: [{exact: \"https://a\\n\"}]}"), `control character`},
		{"exposed header", http(ok + ", corsPolicy: {exposeHeaders: [\"x\\r\\ny\"]}"), `not a valid header name`},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.Quick(t, 10*time.Second, func() time.Duration { // many times what it takes, also under the race detector
				start := time.Now()
				expect(t, c.yaml, c.want)
				return time.Since(start)
			})
		})
	}
}

// TestProblemsAreBounded: an object with many mistakes gets at most decode.MaxProblems problems.
func TestProblemsAreBounded(t *testing.T) {
	_, got := judge(t, http("route: ["+strings.TrimSuffix(strings.Repeat("{destination: {host: '*'}},", 5000), ",")+"]"))
	if n := strings.Count(got, "\n"); n > decode.MaxProblems {
		t.Errorf("%d problems", n)
	}
}
