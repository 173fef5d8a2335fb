package validate

import (
	"strings"
	"testing"
)

// TestAsIstio has surprising rules of Istio's webhook, with one accepted and some refused objects each. want is that of
// expect.
func TestAsIstio(t *testing.T) {
	const ok = "route: [{" + dest + "}]"
	bound := func(hosts, rest string) string {
		return of("VirtualService", "{hosts: ["+hosts+"], gateways: [g], "+rest+"}")
	}
	sni := func(hosts, names string) string {
		return bound(hosts, "tls: [{match: [{sniHosts: ["+names+"]}], "+ok+"}]")
	}
	exported := func(to string) string {
		return of("VirtualService", "{hosts: [a], exportTo: ["+to+"], http: [{"+ok+"}]}")
	}
	chosen := func(to string) string {
		return of("DestinationRule", "{host: a, exportTo: ["+to+"], workloadSelector: {matchLabels: {a: b}}}")
	}
	shares := func(list string) string { return dr("loadBalancer: {localityLbSetting: {distribute: [" + list + "]}}") }
	value := func(v string) string { return http(ok + ", headers: {request: {set: {x: '" + v + "'}}}") }
	for _, c := range []struct{ name, yaml, want string }{
		{"host: underscore", bound("a_b.com", "http: [{"+ok+"}]"), `"a_b" is not a valid part`},
		{"host: number at the end", bound("a.1", "http: [{"+ok+"}]"), `the last part, "1", is a number`},
		{"host: number alone", bound("'1'", "http: [{"+ok+"}]"), ""},
		{"host: address", bound("1.2.3.4", "http: [{"+ok+"}]"), ""},
		{"host: wildcard of nothing", bound("'*.'", "http: [{"+ok+"}]"), `a wildcard needs a domain`},
		{"host: partial wildcard of a gateway", bound("'*-a.com'", "http: [{"+ok+"}]"), ""},
		{"hosts: covered", bound("'*.a.com', '*.com'", "http: [{"+ok+"}]"), `hosts\[0\]: "\*.a.com": hosts\[1\], \*.com, covers it`},
		{"hosts: covered by all", bound("a.com, '*'", "http: [{"+ok+"}]"), `covers it`},
		{"hosts: beside each other", bound("a.com, '*.a.com', a.a", "http: [{"+ok+"}]"), ""},
		{"hosts: equal", bound("a, a", "http: [{"+ok+"}]"), `same host as hosts\[0\]`},
		{"destination: address", http("route: [{destination: {host: 1.2.3.4}}]"), `an address is no host here`},
		{"subset: underscore", http("route: [{destination: {host: a, subset: v_1}}]"), `not a valid subset name`},
		{"rule: address", of("DestinationRule", "{host: 1.2.3.4}"), `an address is no host here`},
		{"rule: partial wildcard", of("DestinationRule", "{host: '*a.com'}"), `warns: only a wildcard that is the whole first label`},
		{"gateways: with dots", of("VirtualService", "{hosts: [a], gateways: [b/g.c], http: [{"+ok+"}]}"), `"b/g.c": not a gateway's name`},
		{"gateways: of the own namespace", of("VirtualService", "{hosts: [a], gateways: [./g], http: [{"+ok+"}]}"),
			`"./g": not a gateway's name`},
		{"gateways: old form", of("VirtualService", "{hosts: [a], gateways: [g.b.svc], http: [{"+ok+"}]}"),
			`warns: an old form of a gateway's name; write "b/g"`},
		{"gateways: behind a short one", of("VirtualService", "{hosts: [a], gateways: [mesh, g, '?'], http: [{"+ok+"}]}"),
			`warns: gateways\[2\]: has no effect: no Gateway can have this name`},

		{"sni: address", sni("a.com", "1.2.3.4"), `warns: clients send no server name`},
		{"sni: another case", sni("a.com", "A.com"), `not covered by hosts`},
		{"sni: of a cluster", sni("'*'", "outbound_.80_._.a.b"), ""},
		{"sni: of a cluster as a host", sni("outbound_.80_._.a.b", "outbound_.80_._.a.b"), ""},
		{"sni: partial", sni("'*a.com'", "'*a.com'"), `the whole first label alone`},

		{"exportTo: nobody", exported("'~'"), `only a service can be exported to nobody`},
		{"exportTo: own twice", exported("., apps"), `exportTo\[1\]: "apps": listed twice`},
		{"exportTo: upper case", exported("B"), `warns: no namespace can have this name`},
		{"exportTo: chosen workloads", chosen("."), ""},
		{"exportTo: chosen workloads of others", chosen("b"), `workloads of its own namespace alone`},
		{"exportTo: chosen workloads of all", chosen("'*'"), `workloads of its own namespace alone`},
		{"labels: long", http("match: [{sourceLabels: {a: " + strings.Repeat("b", 64) + "}}], " + ok), `warns: no workload can have`},
		{"labels: none", http("match: [{sourceLabels: {'a b': c}}], " + ok), `not a valid label name`},

		{"authority twice", http(ok + ", rewrite: {authority: b}, headers: {request: {add: {Host: c}}}"),
			`the authority is already rewritten, to b`},
		{"authority set and added", http(ok + ", headers: {request: {set: {':authority': b}, add: {host: c}}}"), `already rewritten`},
		{"authority of route and destination", http("rewrite: {authority: b}, route: [{" + dest + ", headers: {request: {set: {host: c}}}}]"),
			""},
		{"value: length", value("%REQ(x):10%"), `without a length`},
		{"value: empty argument", value("%PROTOCOL()%"), `arguments in brackets, if any`},
		{"value: list", value(`%UPSTREAM_METADATA(["a", "b"])%`), ""},
		{"value: percent signs", value("100%% %%%REQ(x)%"), ""},
		{"value: control character", http(ok + `, headers: {request: {set: {x: "a\u0001"}}}`), `control character`},
		{"value: tab", http(ok + `, headers: {request: {set: {x: "a\tb"}}}`), ""},
		{"answer and delegate", http("delegate: {name: d}, directResponse: {status: 200}"),
			`warns: answers all that the delegate's routes match`},
		{"redirect and delegate", http("delegate: {name: d}, redirect: {uri: /a}"), `redirect and delegate exclude each other`},
		{"no name of a delegate", http("delegate: {name: 'a b'}"), `warns: no VirtualService can have this name`},
		{"half a percent of a millionth", http(ok + ", fault: {abort: {httpStatus: 500, percentage: {value: 0.00001}}}"),
			`less than a millionth`},
		{"abort of nothing", http(ok + ", fault: {abort: {percentage: {value: 1}}}"), `warns: no error is set`},
		{"delay of nothing", http(ok + ", fault: {delay: {percentage: {value: 1}}}"), `warns: no delay is set`},
		{"timeout finer than a millisecond", http(ok + ", timeout: 1500us"), `finer than a millisecond`},
		{"method of cors", http(ok + ", corsPolicy: {allowMethods: [get]}"), `no method of HTTP; did you mean "GET"`},
		{"origin of cors", http(ok + ", corsPolicy: {allowOrigins: [{}]}"), `match is empty`},
		{"no port of a redirect", http("redirect: {uri: /a, port: 0}"), `warns: 0 is no port`},
		{"empty uri", http("match: [{uri: {}}], " + ok), `warns: holds for every path`},
		{"empty method", http("match: [{method: {}}], " + ok), ""},
		{"back-off without attempts", http(ok + ", retries: {attempts: 0, backoff: 1s}"), `warns: retries are switched off`},
		{"large answer", http("directResponse: {status: 200, body: {string: " + strings.Repeat("a", 101<<10) + "}}"),
			`warns: body has 103424 bytes`},

		{"policy of nothing", of("DestinationRule", "{host: a, trafficPolicy: {}}"), `traffic policy sets nothing`},
		{"port of nothing", dr("portLevelSettings: [{port: {number: 80}}]"), `nothing is set for the port`},
		{"no port", dr("portLevelSettings: [{port: {number: 0}, tls: {}}]"), `warns: no service has such a port`},
		{"Maglev without a size", dr("loadBalancer: {consistentHash: {useSourceIp: true, maglev: {}}}"), `tableSize: 0: not a prime`},
		{"Maglev's largest", dr("loadBalancer: {consistentHash: {useSourceIp: true, maglev: {tableSize: 5000011}}}"),
			`not a prime number below 5000011`},
		{"two sizes", dr("loadBalancer: {consistentHash: {useSourceIp: true, minimumRingSize: 8, ringHash: {}}}"),
			`minimumRingSize: 8: cannot be combined`},
		{"cookie attribute twice", dr("loadBalancer: {consistentHash: {httpCookie: {name: a, attributes: [{name: b}, {name: b}]}}}"),
			`same name as attributes\[0\]`},
		{"failover without ejection", dr("loadBalancer: {localityLbSetting: {failover: [{from: a, to: b}]}}"),
			`warns: nothing fails over without outlierDetection`},
		{"shares: special first", shares("{from: r/z, to: {r: 100}}, {from: 'r/*', to: {r: 100}}, {from: '*', to: {r: 100}}"), ""},
		{"shares: general first", shares("{from: 'r/*', to: {r: 100}}, {from: r/z, to: {r: 100}}"), `overlaps with r/\*`},
		{"shares: a region and a part of it", shares("{from: r/z, to: {r: 100}}, {from: r, to: {r: 100}}"), `overlaps with r/z`},
		{"shares: to a region and the rest", shares("{from: r, to: {'*': 20, r: 80}}"), ""},
		{"skipped verification and a credential", dr("tls: {mode: SIMPLE, credentialName: c, insecureSkipVerify: true}"),
			`contradicts what servers are verified with`},
		{"skipped verification of a server that is shown a certificate", dr("tls: {mode: MUTUAL, credentialName: c, insecureSkipVerify: true}"),
			""},
		{"ConfigMap of the own namespace", dr("tls: {mode: SIMPLE, credentialName: 'configmap://apps/a'}"),
			`warns: no secrets are served for configmap`},
		{"ConfigMap of another namespace", dr("tls: {mode: SIMPLE, credentialName: 'configmap://b/a'}"),
			`not a ConfigMap of the rule's own namespace`},
		{"ejection by an old count", dr("outlierDetection: {consecutiveErrors: 5}"), `warns: consecutiveErrors: deprecated`},
		{"local failures of none", dr("outlierDetection: {consecutiveLocalOriginFailures: 0}"), ""},

		{"gateway: dots in the name", strings.Replace(server("port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']"), "name: server",
			"name: a.b", 1), `metadata.name: "a.b": not a Gateway's name`},
		{"gateway: short host", server("port: {number: 80, name: http, protocol: HTTP}, hosts: [ns/reviews]"),
			`a short name is no host of a gateway`},
		{"gateway: partial wildcard", server("port: {number: 80, name: http, protocol: HTTP}, hosts: ['*a.com']"),
			`the whole first label on a gateway`},
		{"gateway: no namespace", server("port: {number: 80, name: http, protocol: HTTP}, hosts: [/a.com]"), `not a namespace before the slash`},
		{"gateway: socket with a port", server("bind: 'unix:///a', port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']"),
			`a unix socket has no port`},
		{"gateway: TLS of bytes", server("port: {number: 443, name: tcp, protocol: TCP}, hosts: ['*'], tls: {mode: SIMPLE, credentialName: c}"),
			`protocol TCP is not encrypted`},
		{
			"gateway: passed plaintext", server(
				"port: {number: 80, name: http, protocol: HTTP}, hosts: ['*'], tls: {mode: PASSTHROUGH, credentialName: c}"),
			`warns: protocol HTTP is plaintext`},
		{"gateway: datagrams", server("port: {number: 80, name: udp, protocol: UDP}, hosts: ['*']"), `warns: datagrams are not proxied`},
		{"gateway: selector of nobody",
			of("Gateway", "{selector: {a: '*'}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}"),
			`warns: no workload can have`},
		{"gateway: names used twice", of("Gateway",
			"{servers: [{port: {number: 80, name: a b, protocol: HTTP}, name: c, hosts: ['*']}, {port: {number: 81, name: d, protocol: HTTP}, "+
				"name: c, hosts: ['*']}]}"), ""},
		{"gateway: authorities of a pair",
			secured("mode: MUTUAL, tlsCertificates: [{serverCertificate: /a, privateKey: /b, caCertificates: /c}]"),
			`clients could not be verified`},
		{"gateway: authorities in a Secret beside files", secured("mode: MUTUAL, serverCertificate: /a, privateKey: /b, caCertCredentialName: c"),
			`clients could not be verified`},
		{"gateway: three pairs", secured("mode: SIMPLE, credentialNames: [a, b, c]"), `warns: more than two certificates`},
		{"gateway: revoked clients of nobody", secured("mode: SIMPLE, serverCertificate: /a, privateKey: /b, caCrl: /c"), `caCrl: has no effect`},
		{"gateway: unknown cipher", secured("mode: SIMPLE, credentialName: c, cipherSuites: [AES128-SHA, RC4]"),
			`warns: cipherSuites\[1\]: has no effect: no cipher suite that proxies know`},
		{"gateway: ciphers without one",
			secured("mode: SIMPLE, credentialName: c, cipherSuites: [ALL, -DES-CBC3-SHA, '[AES128-SHA|AES256-SHA]', '']"), ""},
		{"gateway: no cipher left", secured("mode: SIMPLE, credentialName: c, cipherSuites: [ALL, -ALL]"), `leaves no cipher suite`},
		{"gateway: no expression", secured("mode: SIMPLE, credentialName: c, cipherSuites: ['[AES128-SHA']"), `no expression of cipher suites`},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, c.yaml, c.want) })
	}
}

// TestUnreachable: routes that get no traffic are reported, and no others.
func TestUnreachable(t *testing.T) {
	const ok = "route: [{" + dest + "}]"
	for name, tc := range map[string]struct{ http, want string }{
		"behind a rule without matches": {"{" + ok + "}, {match: [{port: 80}], " + ok + "}", `http\[1\]: is never reached: http\[0\]`},
		"behind a match of everything": {"{match: [{uri: {prefix: /}}], " + ok + "}, {" + ok + "}",
			`http\[1\]: is never reached: http\[0\].match\[0\]`},
		"the same match": {"{match: [{name: a, method: {exact: GET}}], " + ok +
			"}, {match: [{name: b, method: {exact: GET}}], " + ok + "}", `http\[1\].match\[0\]: is never reached`},
		"a longer prefix": {"{match: [{uri: {prefix: /a}}], " + ok +
			"}, {match: [{uri: {prefix: /a/b}, method: {exact: GET}}], " + ok + "}", `http\[1\].match\[0\]: is never reached: http\[0\].match\[0\]`},
		"a path under a prefix, both of GET": {"{match: [{uri: {prefix: /a}, method: {exact: GET}}], " + ok +
			"}, {match: [{uri: {exact: /a/b}, method: {exact: GET}}], " + ok + "}", `http\[1\].match\[0\]: is never reached`},
		"within one rule": {"{match: [{uri: {prefix: /a}}, {uri: {exact: /ab}}], " + ok + "}",
			`http\[0\].match\[1\]: is never reached`},

		"a longer prefix of another method": {"{match: [{uri: {prefix: /a}, method: {exact: GET}}], " + ok +
			"}, {match: [{uri: {prefix: /a/b}, method: {exact: PUT}}], " + ok + "}", "^$"},
		"a shorter prefix": {"{match: [{uri: {prefix: /a/b}}], " + ok + "}, {match: [{uri: {prefix: /a}}], " + ok + "}", "^$"},
		"behind a delegate": {"{delegate: {name: d}}, {match: [{uri: {prefix: /a}}], delegate: {name: e}}, {match: [{uri: " +
			"{prefix: /a}}], " + ok + "}", "^$"},
		"a prefix in any case": {"{match: [{uri: {prefix: /a}}], " + ok +
			"}, {match: [{uri: {prefix: /ab}, ignoreUriCase: true}], " + ok + "}", "^$"},
		"everything of one gateway": {"{match: [{gateways: [g]}], " + ok + "}, {" + ok + "}", "^$"},
		"the last takes the rest":   {"{match: [{port: 80}], " + ok + "}, {" + ok + "}", "^$"},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, of("VirtualService", "{hosts: [a], http: ["+tc.http+"]}"), "warns: "+tc.want)
		})
	}
	expect(t, of("VirtualService", "{hosts: [a], tcp: [{match: [{port: 1}], "+ok+"}, {match: [{port: 1}], "+ok+"}]}"),
		`warns: tcp\[1\].match\[0\]: is never reached`)
	expect(t, of("VirtualService", "{hosts: [a], tls: [{match: [{sniHosts: [a]}, {sniHosts: [a]}], "+ok+"}]}"),
		`warns: tls\[0\].match\[1\]: is never reached`)
}
