package validate

import (
	"strings"
	"testing"
)

const dest = "destination: {host: a}"

// http wraps one HTTP route.
func http(route string) string { return of("VirtualService", "{hosts: [a], http: [{"+route+"}]}") }

func dr(policy string) string {
	return of("DestinationRule", "{host: a, trafficPolicy: {"+policy+"}}")
}

func annotated(annotations string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: a, annotations: " + annotations + "}\nspec: {ports: [{port: 80}]}"
}

func server(s string) string { return of("Gateway", "{servers: [{"+s+"}]}") }

// secured is a server of protocol HTTPS with TLS settings.
func secured(s string) string {
	return server("port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.com], tls: {" + s + "}")
}

// TestRules has one accepted and some refused objects for each rule. want is that of expect.
func TestRules(t *testing.T) {
	ok := "route: [{" + dest + "}]"
	cases := []struct{ name, yaml, want string }{
		{"vs: plain", http(ok), ""},
		{"vs: wildcard host", of("VirtualService", `{hosts: ["*.example.com"], gateways: [g, other/g, mesh], http: [{`+ok+`}]}`), ""},
		{"vs: wildcard destination", http("route: [{destination: {host: '*.example.com'}}]"), ""},
		{"vs: bad wildcard", of("VirtualService", `{hosts: ["a*.example.com"], http: [{`+ok+`}]}`),
			`hosts\[0\]: "a\*.example.com": not a valid host`},
		{"vs: * on mesh", of("VirtualService", `{hosts: ["*"], http: [{`+ok+`}]}`), `only allowed on gateways`},
		{"vs: * on gateway", of("VirtualService", `{hosts: ["*"], gateways: [g], http: [{`+ok+`}]}`), ""},
		{"vs: duplicate host", of("VirtualService", `{hosts: [a, A], http: [{`+ok+`}]}`), `warns: hosts have no upper case: it is hosts\[0\]`},
		{"vs: gateway name", of("VirtualService", `{hosts: [a], gateways: ["x/y/z"], http: [{`+ok+`}]}`),
			`gateways\[0\]: "x/y/z": not a gateway`},
		{"vs: no routes", of("VirtualService", "{hosts: [a]}"), `spec: no route`},
		{"vs: exportTo", of("VirtualService", `{hosts: [a], exportTo: ["*", b], http: [{`+ok+`}]}`), `exportTo: "\*" cannot be combined`},
		{"vs: delegate", of("VirtualService", "{http: [{"+ok+"}]}"), ""},
		{"vs: delegate with gateways", of("VirtualService", "{gateways: [g], http: [{"+ok+"}]}"), `a delegate .no hosts. takes its gateways`},
		{"vs: root", http("match: [{uri: {prefix: /a}}], delegate: {name: d, namespace: other}"), ""},
		{"vs: root with route", http(ok + ", delegate: {name: d}"), `route and delegate exclude each other`},
		{"vs: nothing", http("timeout: 1s"), `route does nothing`},
		{"vs: redirect and route", http(ok + ", redirect: {uri: /x}"), `route and redirect exclude each other`},
		{"vs: redirect and fault", http("redirect: {uri: /x}, fault: {abort: {httpStatus: 500}}"), `fault: cannot be combined with redirect`},
		{"vs: redirect", http("redirect: {uri: /x, redirectCode: 308, scheme: https, port: 8443}"), ""},
		{"vs: redirect code", http("redirect: {uri: /x, redirectCode: 200}"), `redirectCode: 200: no redirect status`},
		{"vs: empty redirect", http("redirect: {}"), `redirect changes nothing`},
		{"vs: direct response", http("directResponse: {status: 503, body: {string: x}}"), ""},
		{"vs: direct response status", http("directResponse: {status: 99}"), `status: 99: no final HTTP status`},
		{"vs: weights", http("route: [{" + dest + ", weight: 80}, {" + dest + ", weight: 20}]"), ""},
		{"vs: weights need not sum to 100", http("route: [{" + dest + ", weight: 3}, {" + dest + ", weight: 1}]"), ""},
		{"vs: weights all 0", http("route: [{" + dest + "}, {" + dest + "}]"), `weights of all destinations sum to 0`},
		{"vs: negative weight", http("route: [{" + dest + ", weight: -5}, {" + dest + ", weight: 105}]"),
			`VirtualService apps/server: spec.http\[0\]\.route\[0\]\.weight: -5`},
		{"vs: destination port", http("route: [{destination: {host: a, port: {number: 70000}}}]"), `destination.port.number: 70000: not a port`},
		{"vs: no destination", http("route: [{weight: 1}]"), `route\[0\].destination: missing`},
		{"vs: regex", http("match: [{uri: {regex: '/a(b'}}], " + ok), `uri.regex: "/a\(b": not a regular expression in RE2`},
		{"vs: backtracking regex", http("match: [{headers: {x: {regex: '(?=a)b'}}}], " + ok), `headers.x.regex: .*not a regular expression`},
		{"vs: empty prefix", http("match: [{method: {prefix: ''}}], " + ok), `prefix is empty`},
		{"vs: empty prefix of paths", http("match: [{uri: {prefix: ''}}], " + ok), ""},
		{"vs: header absent, by Istio's star", http("match: [{withoutHeaders: {a: {regex: '*'}}}], " + ok), ""},
		{"vs: star is no expression", http("match: [{headers: {a: {regex: '*'}}}], " + ok), `RE2`},
		{"vs: header presence", http("match: [{headers: {x-user: {}}}], " + ok), ""},
		{"vs: header name", http("match: [{headers: {'x user': {exact: a}}}], " + ok), `headers\["x user"\]: .*not a valid header name`},
		{"vs: pseudo header", http("match: [{headers: {':path': {prefix: /a}}, withoutHeaders: {':method': {exact: GET}}}], " + ok), ""},
		{"vs: claims", http("match: [{headers: {'@request.auth.claims.group': {exact: a}}}], " + ok), `only gateways route by claims`},
		{"vs: absent claims", http("match: [{withoutHeaders: {'@request.auth.claims[a][b]': {}}}], " + ok), `withoutHeaders.*only gateways route by claims`},
		{"vs: claims at a gateway", of("VirtualService", "{hosts: [a.com], gateways: [g], "+
			"http: [{match: [{headers: {'@request.auth.claims.group': "+
			"{exact: a}}}], "+ok+"}]}"), ""},
		{"vs: claims without a name", of("VirtualService", "{hosts: [a.com], gateways: [g], http: [{match: [{headers: {'@request.auth.claims.': "+
			"{exact: a}}}], "+ok+"}]}"), `not a valid header name`},
		{"vs: timeout", http(ok + ", timeout: 100us"), `timeout: 100.s: shorter than 1ms`},
		{"vs: retries", http(ok + ", retries: {attempts: 3, perTryTimeout: 2s, retryOn: 'gateway-error,connect-failure,503,reset'}"), ""},
		{"vs: retryOn", http(ok + ", retries: {attempts: 3, retryOn: gateway-eror}"),
			`retryOn: "gateway-eror": unknown retry condition; did you mean "gateway-error"`},
		{"vs: retries off", http(ok + ", retries: {attempts: 0, perTryTimeout: 2s}"), `attempts: retries are switched off`},
		{
			"vs: fault", http(ok + ", fault: {delay: {percentage: {value: 0.1}, fixedDelay: 5s}, abort: {httpStatus: 503, percentage: {value: " +
				"50}}}"), ""},
		{"vs: fault percent", http(ok + ", fault: {abort: {httpStatus: 503, percentage: {value: 101}}}"),
			`percentage.value: 101: not a percentage`},
		{"vs: exponential delay", http(ok + ", fault: {delay: {exponentialDelay: 5s}}"),
			`exponentialDelay: exponential delays are not supported`},
		{"vs: grpc status", http(ok + ", fault: {abort: {grpcStatus: UNAVAILABL}}"),
			`grpcStatus: "UNAVAILABL": no gRPC status; did you mean "UNAVAILABLE"`},
		{"vs: mirror", http(ok + ", mirrors: [{destination: {host: b}, percentage: {value: 10}}]"), ""},
		{"vs: mirror twice", http(ok + ", mirror: {host: b}, mirrors: [{destination: {host: b}}]"),
			`mirrors: cannot be set together with mirror`},
		{"vs: cors", http(ok + ", corsPolicy: {allowOrigins: [{exact: 'https://a'}], allowMethods: [GET], maxAge: 1h}"), ""},
		{"vs: cors age", http(ok + ", corsPolicy: {maxAge: 1500ms}"), `maxAge: 1.5s: not a whole number of seconds`},
		{"vs: headers", http(ok + ", headers: {request: {set: {x-a: '%REQ(x-b)%', ':authority': b}, add: {x: 100%%}, remove: [x-c]}}"), ""},
		{"vs: header percent", http(ok + ", headers: {response: {set: {x: 100%}}}"), `percent sign begins no command`},
		{"vs: header command", http(ok + ", headers: {response: {set: {x: '%NO_SUCH%'}}}"), `unknown command %NO_SUCH%`},
		{"vs: header line break", http(ok + ", headers: {response: {set: {x: \"a\\nb\"}}}"), `contains a line break`},
		{"vs: remove host", http(ok + ", headers: {request: {remove: [Host]}}"), `cannot route without it`},
		{"vs: rewrite", http(ok + ", rewrite: {uriRegexRewrite: {match: '^/a/(.*)$', rewrite: '/\\1'}}"), ""},
		{"vs: rewrite group", http(ok + ", rewrite: {uriRegexRewrite: {match: '^/a/(.*)$', rewrite: '/\\2'}}"),
			`refers to a group that match does not have`},
		{"vs: empty match", http("match: [{}], " + ok), ""},
		{"vs: null match", http("match: [null], " + ok), `match\[0\]: item is empty`},
		{"vs: prefix of a redirect", http("match: [{uri: {prefix: /a}}, {port: 80}], redirect: {prefixRewrite: /b}"), ""},
		{"vs: no prefix to replace", http("match: [{uri: {exact: /a}}], redirect: {prefixRewrite: /b}"),
			`prefixRewrite: "/b": match\[0\].uri has no prefix`},
		{"vs: redirect twice", http("redirect: {uri: /a, prefixRewrite: /b}"), `cannot be set together with uri`},
		{"vs: redirect and mirror", http("redirect: {uri: /a}, mirror: {host: b}"),
			`warns: mirror: has no effect: what the proxy answers itself`},
		{"vs: answer and rewrite", http("directResponse: {status: 200}, rewrite: {uri: /b}"), `rewrite: cannot be combined with directResponse`},
		{"vs: share of no mirror", http(ok + ", mirrorPercentage: {value: 10}"), `warns: mirrorPercentage: has no effect: there is no mirror`},
		{"vs: two shares", http(ok + ", mirror: {host: b}, mirrorPercent: 10, mirrorPercentage: {value: 10}"),
			`warns: mirrorPercent: has no effect: mirrorPercentage comes before it`},
		{"vs: two shares of a delay", http(ok + ", fault: {delay: {fixedDelay: 1s, percent: 10, percentage: {value: 10}}}"),
			`warns: delay.percent: has no effect: percentage comes before it`},
		{"vs: old origins", http(ok + ", corsPolicy: {allowOrigin: ['*']}"), ""},
		{"vs: two lists of origins", http(ok + ", corsPolicy: {allowOrigin: ['*'], allowOrigins: [{exact: a}]}"),
			`warns: allowOrigin: has no effect: allowOrigins comes before it`},
		{"vs: http2 error", http(ok + ", fault: {abort: {http2Error: REFUSED_STREAM}}"), `http2Error: HTTP/2 errors are not supported`},
		{"vs: regex of a root", http("match: [{uri: {regex: '/a.*'}}], delegate: {name: d}"), ""},
		{"vs: regex of a delegate", of("VirtualService", "{http: [{match: [{uri: {regex: '/a.*'}}], "+ok+"}]}"), ""},
		{"vs: gateways and namespace of a delegate", of("VirtualService", "{http: [{match: [{gateways: [g], sourceNamespace: b}], "+ok+"}]}"),
			""},
		{"vs: delegates twice", of("VirtualService", "{http: [{delegate: {name: d}}]}"), `cannot delegate further`},
		{"vs: numeric retryOn", http(ok + ", retries: {attempts: 3, retryOn: '503,418,reset'}"), ""},
		{"vs: retryOn with spaces", http(ok + ", retries: {attempts: 3, retryOn: '503, reset'}"), `retryOn: " reset": has a space`},
		{"vs: retryOn a status of nobody", http(ok + ", retries: {attempts: 3, retryOn: '503,520'}"),
			`retryOn: "520": no HTTP status that is known`},
		{"vs: retryOn no status", http(ok + ", retries: {attempts: 3, retryOn: '600'}"), `retryOn: "600": no HTTP status`},
		{"vs: command for access logs", http(ok + ", headers: {request: {set: {x: '%RESPONSE_CODE_DETAILS%'}}}"), ""},
		{"vs: tls", of("VirtualService", "{hosts: ['*.a.com'], tls: [{match: [{sniHosts: [x.a.com]}], "+ok+"}]}"), ""},
		{"vs: sni not covered", of("VirtualService", "{hosts: [a.com], tls: [{match: [{sniHosts: [b.com]}], "+ok+"}]}"),
			`sniHosts\[0\]: "b.com": server name is not covered`},
		{"vs: tcp", of("VirtualService", "{hosts: [a], tcp: [{match: [{port: 9000, destinationSubnets: [10.0.0.0/8]}], "+ok+"}]}"), ""},
		{"vs: subnet", of("VirtualService", "{hosts: [a], tcp: [{match: [{destinationSubnets: [10.0.0.0/99]}], "+ok+"}]}"), `not a valid CIDR`},

		{
			"dr: plain", dr("loadBalancer: {simple: LEAST_REQUEST}, connectionPool: {tcp: {maxConnections: 1, connectTimeout: 1s}}, " +
				"outlierDetection: {consecutive5xxErrors: 1}, tls: {mode: ISTIO_MUTUAL}"), ""},
		{"dr: no host", of("DestinationRule", "{}"), `spec.host: host is empty`},
		{"dr: duplicate subsets", of("DestinationRule", "{host: a, subsets: [{name: v1}, {name: v1}]}"),
			`subsets\[1\].name: "v1": same name as subsets\[0\]`},
		{"dr: subset name", of("DestinationRule", "{host: a, subsets: [{name: 'v|1'}]}"), `not a valid subset name`},
		{"dr: duplicate ports", dr("portLevelSettings: [{port: {number: 80}, tls: {}}, {port: {number: 80}, tls: {}}]"),
			`warns: portLevelSettings\[1\].port.number: has no effect: the port has the settings of portLevelSettings\[0\]`},
		{"dr: mutual without certificate", dr("tls: {mode: MUTUAL}"), `clientCertificate: missing in mode MUTUAL`},
		{"dr: istio mutual with certificate", dr("tls: {mode: ISTIO_MUTUAL, clientCertificate: /a}"),
			`warns: tls: has no effect: mode ISTIO_MUTUAL uses the workload's own`},
		{"dr: hash nothing", dr("loadBalancer: {consistentHash: {}}"), `warns: consistentHash: nothing is hashed`},
		{"dr: hash header", dr("loadBalancer: {consistentHash: {httpHeaderName: x-user, ringHash: {minimumRingSize: 1024}}}"), ""},
		{"dr: maglev", dr("loadBalancer: {consistentHash: {useSourceIp: true, maglev: {tableSize: 100}}}"), `tableSize: 100: not a prime`},
		{"dr: distribute", dr("loadBalancer: {localityLbSetting: {distribute: [{from: 'r/*', to: {r: 80, s: 10}}]}}"),
			`weights do not sum to 100`},
		{"dr: failover", dr("loadBalancer: {localityLbSetting: {failover: [{from: r, to: r}]}}"), `fails over to itself`},
		{"dr: ejection percent", dr("outlierDetection: {maxEjectionPercent: 200}"), `maxEjectionPercent: 200: not a percentage`},
		{"dr: negative pool", dr("connectionPool: {http: {http2MaxRequests: -1}}"), `http2MaxRequests: -1: negative`},
		{"dr: warmup", dr("loadBalancer: {simple: RANDOM, warmup: {duration: 1s}}"), `warns: warm-up works only with`},
		{"dr: fast warm-up", dr("loadBalancer: {warmup: {duration: 1s, aggression: 0.5}}"), ""},
		{"dr: warm-up that stands still", dr("loadBalancer: {warmup: {duration: 1s, aggression: 0}}"), `aggression: 0: not above 0`},
		{"dr: two warm-ups", dr("loadBalancer: {warmupDurationSecs: 1s, warmup: {duration: 1s}}"),
			`warns: warmupDurationSecs: has no effect: warmup comes before it`},
		{"dr: hash by no address", dr("loadBalancer: {consistentHash: {useSourceIp: false}}"), `warns: useSourceIp: nothing is hashed`},
		{"dr: failover twice", dr("loadBalancer: {localityLbSetting: {failover: [{from: r, to: s}, {from: r, to: t}]}}"),
			`warns: failover\[1\]: has no effect: a region fails over to one other: that of failover\[0\]`},
		{
			"dr: failover priority", dr("outlierDetection: {}, loadBalancer: {localityLbSetting: {failoverPriority: [topology.istio.io/network, " +
				"version=v1]}}"), ""},
		{
			"dr: failover and places", dr(
				"loadBalancer: {localityLbSetting: {failover: [{from: r, to: s}], failoverPriority: [version, topology.kubernetes.io/region]}}"),
			`failoverPriority\[1\]: "topology.kubernetes.io/region": orders places`},
		{"dr: cookie path with more", dr("loadBalancer: {consistentHash: {httpCookie: {name: a, path: '/; Domain=b'}}}"),
			`path: "/; Domain=b": a semicolon`},
		{"dr: cookie path with a line", dr(`loadBalancer: {consistentHash: {httpCookie: {name: a, path: "/\r\nb"}}}`), `control character`},
		{"dr: cookie attribute with a line",
			dr(`loadBalancer: {consistentHash: {httpCookie: {name: a, attributes: [{name: b, value: "c\nd"}]}}}`),
			`attributes\[0\].value: .*control character`},
		{"dr: file with a line", dr(`tls: {mode: SIMPLE, caCertificates: "/a\nb"}`), `caCertificates: .*control character`},
		{"dr: tunnel", dr("tunnel: {protocol: POST, targetHost: a.example.com, targetPort: 443}"), ""},
		{"dr: PROXY protocol", dr("proxyProtocol: {version: V2}"), ""},
		{"dr: tunnel and PROXY protocol", dr("tunnel: {targetHost: a.example.com, targetPort: 443}, proxyProtocol: {version: V2}"),
			`proxyProtocol: cannot be combined with tunnel`},
		{"dr: tunnel protocol", dr("tunnel: {protocol: PUT, targetHost: a.example.com, targetPort: 443}"),
			`protocol: "PUT": unknown tunnel protocol`},
		{"dr: tunnel to a wildcard", dr("tunnel: {targetHost: '*.example.com', targetPort: 443}"), `cannot lead to a wildcard`},
		{"dr: tunnel to nowhere", dr("tunnel: {targetHost: a.example.com}"), `targetPort: 0: not a port`},
		{"dr: no idle timeout", dr("connectionPool: {tcp: {idleTimeout: 0s}}"), ""},
		{"dr: pings", dr("connectionPool: {http: {http2KeepAlive: {interval: 1s}}}"), `http2KeepAlive.timeout: missing`},
		{"dr: two protocols", dr("connectionPool: {http: {useClientProtocol: true, h2UpgradePolicy: UPGRADE}}"),
			`useClientProtocol: true: cannot be combined`},
		{"dr: retry budget", dr("retryBudget: {percent: 25, minRetryConcurrency: 5}"), ""},
		{"dr: error codes", dr("outlierDetection: {outlierDetectionHttpErrorCodes: [99]}"),
			`outlierDetectionHttpErrorCodes\[0\]: 99: no HTTP status`},
		{"dr: revoked by two", dr("tls: {mode: SIMPLE, credentialName: a, caCrl: /crl}"),
			`cannot be combined with clientCertificate, privateKey, caCertificates or caCrl`},
		{"dr: files in strange paths", dr("tls: {mode: MUTUAL, clientCertificate: /a~b, privateKey: /c, caCertificates: /d}"),
			`clientCertificate: "/a~b": a path with ~`},
		{"dr: skip and verify", dr("tls: {mode: SIMPLE, insecureSkipVerify: true, subjectAltNames: [a]}"),
			`insecureSkipVerify: true: contradicts`},
		{"dr: v1beta1", "apiVersion: networking.istio.io/v1beta1\nkind: DestinationRule\nmetadata: {name: a}\nspec: {host: a}", ""},

		{"gw: plain", server("port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']"), ""},
		{"gw: tls", server("port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.com], tls: {mode: SIMPLE, credentialName: c}"), ""},
		{"gw: https without tls", server("port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.com]"), `tls: missing for protocol HTTPS`},
		{
			"gw: tls with a namespace", server(
				"port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.com], tls: {mode: SIMPLE, credentialName: 'kubernetes-gateway://a/b'}"),
			""},
		{"gw: tls without its namespace",
			server("port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.com], tls: {mode: SIMPLE, credentialName: " +
				"'kubernetes-gateway://b'}"), `warns: wants a namespace`},
		{
			"gw: tls from elsewhere", server(
				"port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.com], tls: {mode: SIMPLE, credentialName: 'sds://b'}"),
			`warns: no secrets are served for sds://`},
		{"gw: http with tls", server("port: {number: 80, name: http, protocol: HTTP}, hosts: [a.com], tls: {mode: SIMPLE, credentialName: c}"),
			`protocol HTTP is plaintext`},
		{"gw: redirect", server("port: {number: 80, name: http, protocol: HTTP}, hosts: [a.com], tls: {httpsRedirect: true}"), ""},
		{"gw: no certificate", server("port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.com], tls: {mode: SIMPLE}"),
			`no certificate for mode SIMPLE`},
		{
			"gw: mutual without ca", server(
				"port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.com], tls: {mode: MUTUAL, serverCertificate: /a, privateKey: /b}"),
			`clients could not be verified`},
		{"gw: no hosts", server("port: {number: 80, name: http, protocol: HTTP}"), `hosts: missing`},
		{"gw: port", server("port: {number: 0, name: http, protocol: HTTP}, hosts: [a.com]"), `port.number: 0: not a port`},
		{"gw: protocol", server("port: {number: 80, name: http, protocol: HTPP}, hosts: [a.com]"),
			`protocol: "HTPP": unknown protocol; did you mean "HTTP"`},
		{"gw: duplicate port name", of("Gateway",
			"{servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: [a.com]}, {port: {number: 81, name: h, protocol: HTTP}, hosts: "+
				"[a.com]}]}"), `same port name as servers\[0\]`},
		{
			"gw: tls versions", server("port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.com], tls: {mode: SIMPLE, credentialName: c, " +
				"minProtocolVersion: TLSV1_3, maxProtocolVersion: TLSV1_2}"), `warns: newer than maxProtocolVersion`},

		{"gw: socket", server("port: {number: 0, name: http, protocol: HTTP}, hosts: [a.com], bind: 'unix:///run/gw.sock'"), ""},
		{"gw: bind", server("port: {number: 80, name: http, protocol: HTTP}, hosts: [a.com], bind: everywhere"),
			`bind: "everywhere": neither an IP address nor a unix socket`},
		{"gw: target port", server("port: {number: 80, name: http, protocol: HTTP, targetPort: 8080}, hosts: [a.com]"),
			`targetPort: has no effect on a gateway`},
		{"gw: default endpoint", server("port: {number: 80, name: http, protocol: HTTP}, hosts: [a.com], defaultEndpoint: '127.0.0.1:80'"),
			`warns: defaultEndpoint: .*has no meaning on a gateway`},
		{"gw: no namespace", server("port: {number: 80, name: http, protocol: HTTP}, hosts: ['~/a']"), `"~/a": not a namespace before the slash`},
		{"gw: no detection", server("port: {number: 80, name: http, protocol: AUTO}, hosts: [a.com]"), `protocol: "AUTO": unknown protocol`},
		{"gw: no redirect", server("port: {number: 80, name: http, protocol: HTTP}, hosts: [a.com], tls: {httpsRedirect: false}"), ""},
		{
			"gw: redirect of bytes", server(
				"port: {number: 443, name: tls, protocol: TLS}, hosts: [a.com], tls: {mode: PASSTHROUGH, httpsRedirect: true}"),
			`warns: no plaintext requests to redirect`},
		{"gw: auto passthrough", server("port: {number: 15443, name: tls, protocol: TLS}, hosts: ['*.local'], tls: {mode: AUTO_PASSTHROUGH}"),
			""},
		{"gw: passthrough with versions", secured("mode: PASSTHROUGH, minProtocolVersion: TLSV1_3"), ""},
		{"gw: passthrough with a certificate", secured("mode: PASSTHROUGH, credentialName: c"), ""},
		{"gw: passthrough with authorities", secured("mode: PASSTHROUGH, credentialName: c, caCertCredentialName: d"),
			`warns: caCertCredentialName: has no effect: mode PASSTHROUGH terminates no TLS`},
		{"gw: simple with clients", secured("mode: SIMPLE, credentialName: c, subjectAltNames: [a]"),
			`warns: subjectAltNames: has no effect: mode SIMPLE asks clients for no certificate`},
		{"gw: simple without verification", secured("mode: SIMPLE, credentialName: c, insecureSkipVerify: true"), ""},
		{"gw: mesh without verification", secured("mode: ISTIO_MUTUAL, insecureSkipVerify: true"), `insecureSkipVerify: has no effect`},
		{
			"gw: mutual, everything", secured(
				"mode: MUTUAL, credentialNames: [a, b], caCertCredentialName: c, subjectAltNames: [x], insecureSkipVerify: true, cipherSuites: " +
					"[AES128-SHA], maxProtocolVersion: TLSV1_1"), ""},
		{"gw: mutual with files and a Secret", secured("mode: MUTUAL, credentialName: a, caCertificates: /c"),
			`warns: caCertificates: has no effect: the credential's Secret`},
		{"gw: mutual with a Secret and a list", secured("mode: MUTUAL, credentialName: a, caCrl: /crl"),
			`warns: caCrl: has no effect: the credential's Secret`},
		{"gw: mesh with a list", secured("mode: ISTIO_MUTUAL, caCrl: /crl"), `warns: caCrl: has no effect: mode ISTIO_MUTUAL trusts`},
		{"gw: list in a strange path", secured("mode: MUTUAL, serverCertificate: /a, privateKey: /b, caCertificates: /c, caCrl: /~"),
			`caCrl: "/~": a path with ~`},
		{"gw: files and a list", secured("mode: OPTIONAL_MUTUAL, serverCertificate: /a, privateKey: /b, caCertificates: /c, caCrl: /d"), ""},
		{"gw: mutual with pairs of files",
			secured("mode: MUTUAL, tlsCertificates: [{serverCertificate: /a, privateKey: /b}], caCertificates: /c"), ""},
		{"gw: pairs without authorities", secured("mode: MUTUAL, tlsCertificates: [{serverCertificate: /a, privateKey: /b}]"),
			`clients could not be verified`},
		{"gw: half a pair", secured("mode: SIMPLE, tlsCertificates: [{serverCertificate: /a}]"),
			`tlsCertificates\[0\]: serverCertificate and privateKey belong together`},
		{"gw: path", secured("mode: SIMPLE, serverCertificate: /a~b, privateKey: /c"), `cannot be asked for`},
		{"gw: mesh", secured("mode: ISTIO_MUTUAL, subjectAltNames: ['spiffe://cluster.local/ns/a/sa/b'], minProtocolVersion: TLSV1_3"), ""},
		{"gw: mesh with authorities", secured("mode: ISTIO_MUTUAL, caCertificates: /c"),
			`caCertificates: has no effect: mode ISTIO_MUTUAL trusts`},
		{"gw: old versions without ciphers", secured("mode: SIMPLE, credentialName: c, maxProtocolVersion: TLSV1_1"),
			`warns: no default cipher suite`},
		{"gw: hash", secured("mode: MUTUAL, credentialName: c, verifyCertificateHash: [" + strings.Repeat("zz", 32) + "]"),
			`verifyCertificateHash\[0\]: .*not a SHA-256`},
		{"gw: hashes", secured("mode: MUTUAL, credentialName: c, verifyCertificateHash: ['" + strings.Repeat("0A:", 31) +
			"0A'], verifyCertificateSpki: [47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=]"), ""},
		{"gw: key hash", secured("mode: MUTUAL, credentialName: c, verifyCertificateSpki: ['" + strings.Repeat("!", 44) + "']"),
			`verifyCertificateSpki\[0\]: .*not a SHA-256`},

		{"sidecar: plain", of("Sidecar", "{egress: [{hosts: ['./*', 'istio-system/*']}]}"), ""},
		{"sidecar: as up writes it", of("Sidecar",
			"{workloadSelector: {labels: {a: b}}, ingress: [{port: {number: 9080, protocol: HTTP, name: http}, bind: 127.66.1.1, captureMode: "+
				"NONE, defaultEndpoint: '127.0.0.1:8080'}], egress: [{port: {number: 15080, protocol: HTTP_PROXY, name: http-proxy}, bind: "+
				"127.66.1.1, captureMode: NONE, hosts: ['*/*']}]}"), ""},
		{"sidecar: hosts", of("Sidecar", "{egress: [{hosts: ['foo']}]}"), `hosts\[0\]: "foo": no namespace`},
		{"sidecar: foreign endpoint", of("Sidecar",
			"{workloadSelector: {labels: {a: b}}, ingress: [{port: {number: 1, protocol: HTTP, name: h}, defaultEndpoint: '10.0.0.1:80'}]}"),
			`forwards only to its own workload`},
		{"sidecar: two without port", of("Sidecar", "{egress: [{hosts: ['*/*']}, {hosts: ['./*']}]}"), `has no port either`},
		{"sidecar: tls", of("Sidecar",
			"{workloadSelector: {labels: {a: b}}, ingress: [{port: {number: 1, protocol: HTTPS, name: h}, defaultEndpoint: '127.0.0.1:80', tls: "+
				"{mode: SIMPLE, serverCertificate: /a, privateKey: /b}}]}"), ""},
		{"sidecar: mutual tls", of("Sidecar",
			"{workloadSelector: {labels: {a: b}}, ingress: [{port: {number: 1, protocol: TLS, name: h}, defaultEndpoint: '127.0.0.1:80', tls: "+
				"{mode: MUTUAL, serverCertificate: /a, privateKey: /b, caCertificates: /c, subjectAltNames: [x]}}]}"), ""},
		{"sidecar: tls without authorities",
			of("Sidecar", "{workloadSelector: {labels: {a: b}}, ingress: [{port: {number: 1, protocol: TLS, name: h}, defaultEndpoint: "+
				"'127.0.0.1:80', tls: {mode: MUTUAL, serverCertificate: /a, privateKey: /b}}]}"), `caCertificates: missing`},
		{"sidecar: tls of a secret", of("Sidecar",
			"{workloadSelector: {labels: {a: b}}, ingress: [{port: {number: 1, protocol: HTTPS, name: h}, defaultEndpoint: '127.0.0.1:80', tls: "+
				"{mode: SIMPLE, credentialName: c}}]}"), `tls.credentialName: Secrets are served to gateways only`},
		{"sidecar: tls on a plain port",
			of("Sidecar", "{workloadSelector: {labels: {a: b}}, ingress: [{port: {number: 1, protocol: HTTP, name: h}, defaultEndpoint: "+
				"'127.0.0.1:80', tls: {mode: SIMPLE, serverCertificate: /a, privateKey: /b}}]}"), `the protocol is not encrypted`},
		{"sidecar: tls passed on", of("Sidecar",
			"{workloadSelector: {labels: {a: b}}, ingress: [{port: {number: 1, protocol: TLS, name: h}, defaultEndpoint: '127.0.0.1:80', tls: "+
				"{mode: PASSTHROUGH}}]}"), `not possible on a sidecar`},
		{"sidecar: tls redirect", of("Sidecar",
			"{workloadSelector: {labels: {a: b}}, ingress: [{port: {number: 1, protocol: HTTPS, name: h}, defaultEndpoint: '127.0.0.1:80', tls: "+
				"{mode: SIMPLE, serverCertificate: /a, privateKey: /b, httpsRedirect: true}}]}"), `httpsRedirect`},
		{"sidecar: one port twice", of("Sidecar",
			"{ingress: [{port: {number: 1, protocol: HTTP, name: h}}, {port: {number: 1, protocol: TCP, name: t}, bind: 127.0.0.1}]}"),
			`same port as ingress`},
		{"sidecar: exclusions", of("Sidecar",
			"{egress: [{hosts: ['*/*', '~prod/*', '~./a.example.com', '~*/b.example.com', '~/c.example.com']}]}"), ""},
		{"sidecar: sockets", of("Sidecar",
			"{egress: [{port: {number: 0, protocol: HTTP, name: h}, bind: 'unix:///run/a.sock', hosts: ['*/*']}, {port: {number: 0, protocol: "+
				"HTTP, name: i}, bind: 'unix://@b', hosts: ['*/*']}]}"), ""},
		{"sidecar: one socket twice", of("Sidecar",
			"{egress: [{port: {number: 0, protocol: HTTP, name: h}, bind: 'unix:///run/a.sock', hosts: ['*/*']}, {port: {number: 80, protocol: "+
				"HTTP, name: i}, bind: 'unix:///run/a.sock', hosts: ['*/*']}]}"), `same port and bind`},
		{"sidecar: captured socket", of("Sidecar",
			"{egress: [{port: {number: 0, protocol: HTTP, name: h}, bind: 'unix:///run/a.sock', captureMode: IPTABLES, hosts: ['*/*']}]}"),
			`cannot be captured`},
		{"sidecar: long socket", of("Sidecar", "{egress: [{port: {number: 0, protocol: HTTP, name: h}, bind: 'unix:///"+strings.Repeat("a", 120)+
			"', hosts: ['*/*']}]}"), `at most 107 are possible`},
		{"sidecar: egress proxy", of("Sidecar",
			"{outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: egress.gateways.svc.cluster.local, port: {number: 80}}}}"), ""},
		{"sidecar: egress proxy of nobody", of("Sidecar", "{outboundTrafficPolicy: {egressProxy: {host: egress.gateways.svc.cluster.local}}}"),
			`has no effect in mode REGISTRY_ONLY`},

		{"pa: plain", of("PeerAuthentication",
			"{selector: {matchLabels: {app: a}}, mtls: {mode: STRICT}, portLevelMtls: {9090: {mode: PERMISSIVE}}}"), ""},
		{"pa: ports without selector", of("PeerAuthentication", "{portLevelMtls: {9090: {mode: STRICT}}}"), `portLevelMtls: needs a selector`},
		{"pa: port key", of("PeerAuthentication", "{selector: {matchLabels: {app: a}}, portLevelMtls: {http: {mode: STRICT}}}"),
			`portLevelMtls.http: "http": key is no number`},
		{"pa: wildcard", of("PeerAuthentication", "{selector: {matchLabels: {app: '*'}}}"), `wildcards are not supported`},

		{"se: dns", of("ServiceEntry", "{hosts: [a.com], ports: [{number: 443, name: tls, protocol: TLS}], resolution: DNS}"), ""},
		{"se: static name", of("ServiceEntry",
			"{hosts: [a.com], ports: [{number: 443, name: tls}], resolution: STATIC, endpoints: [{address: b.com}]}"),
			`address: "b.com": not an IP address`},
		{"se: endpoints with NONE", of("ServiceEntry", "{hosts: [a.com], ports: [{number: 443, name: tls}], endpoints: [{address: 1.1.1.1}]}"),
			`endpoints have no effect`},
		{"se: selector and endpoints",
			of("ServiceEntry", "{hosts: [a.com], ports: [{number: 443, name: tls}], resolution: STATIC, endpoints: [{address: 1.1.1.1}], "+
				"workloadSelector: {labels: {a: b}}}"), `workloadSelector: cannot be combined with endpoints`},
		{"se: duplicate port", of("ServiceEntry", "{hosts: [a.com], ports: [{number: 443, name: a}, {number: 443, name: b}], resolution: DNS}"),
			`ports\[1\].number: 443: same number`},
		{"endpoints", "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a, namespace: b}\nsubsets: [{addresses: [{ip: 10.0.0.1}], ports: " +
			"[{port: 80}]}]\n", ""},
		{"endpoints: name for an address",
			"apiVersion: v1\nkind: Endpoints\nmetadata: {name: a, namespace: b}\nsubsets: [{notReadyAddresses: [{ip: a.com}], ports: [{port: " +
				"80}]}]\n", `subsets\[0\]\.notReadyAddresses\[0\]\.ip: "a.com"`},
		{"endpoints: port", "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a, namespace: b}\nsubsets: [{addresses: [{ip: 10.0.0.1}], " +
			"ports: [{port: 70000}]}]\n", `ports\[0\]\.port: 70000`},
		{"se: wildcard dns", of("ServiceEntry", "{hosts: ['*.com'], ports: [{number: 443, name: a}], resolution: DNS}"),
			`cannot be looked up in DNS`},
		{"se: cidr", of("ServiceEntry", "{hosts: [a.com], addresses: [10.0.0.0/8], ports: [{number: 443, name: a}], resolution: DNS}"),
			`CIDR block needs resolution NONE or STATIC`},
		{"se: unix socket", of("ServiceEntry",
			"{hosts: [a.com], ports: [{number: 80, name: http}], resolution: STATIC, endpoints: [{address: 'unix:///a'}]}"), ""},
		{"se: abstract socket", of("ServiceEntry",
			"{hosts: [a.com], ports: [{number: 80, name: http}], resolution: STATIC, endpoints: [{address: 'unix://@a'}]}"), ""},
		{"se: unix socket in DNS", of("ServiceEntry",
			"{hosts: [a.com], ports: [{number: 80, name: http}], resolution: DNS, endpoints: [{address: 'unix:///a'}]}"),
			`cannot be looked up in DNS`},
		{"se: unix socket, two ports",
			of("ServiceEntry", "{hosts: [a.com], ports: [{number: 80, name: http}, {number: 81, name: http2}], resolution: STATIC, endpoints: "+
				"[{address: 'unix:///a'}]}"), `a unix socket stands for one port`},
		{"se: another port with NONE", of("ServiceEntry", "{hosts: [a.com], ports: [{number: 80, name: http, targetPort: 8080}]}"), ""},
		{"se: dynamic, one host", of("ServiceEntry", "{hosts: ['a.com'], ports: [{number: 80, name: http}], resolution: DYNAMIC_DNS}"),
			`DYNAMIC_DNS is for wildcard hosts`},
		{"se: dynamic, undeclared", of("ServiceEntry", "{hosts: ['*.a.com'], ports: [{number: 80, name: x}], resolution: DYNAMIC_DNS}"),
			`needs a protocol whose clients name the host`},
		{"se: no address", of("ServiceEntry",
			"{hosts: [a.com], ports: [{number: 80, name: http}], resolution: STATIC, endpoints: [{weight: 1}]}"), `address: missing`},
		{"se: a network's gateways lead there",
			of("ServiceEntry", "{hosts: [a.com], ports: [{number: 80, name: http}], resolution: STATIC, endpoints: [{network: net}]}"), ""},
		{"se: a network without a name",
			of("ServiceEntry", "{hosts: [a.com], ports: [{number: 80, name: http}], resolution: DNS, endpoints: [{network: net}]}"),
			`address: nothing to look up in DNS`},
		{"we: plain", of("WorkloadEntry", "{address: 10.0.0.1, ports: {http: 80}, labels: {a: b}, locality: r/z/s, serviceAccount: sa}"), ""},
		{"we: socket", of("WorkloadEntry", "{address: 'unix:///a', ports: {http: 80}}"), `a unix socket has no ports`},

		{"svc: unnamed ports", of("Service", "{ports: [{port: 80}, {port: 81}]}"), `ports\[0\].name: missing`},
		{"svc: traffic distribution", of("Service", "{ports: [{port: 80}], trafficDistribution: PreferSameZone}"), ""},
		{"svc: one port twice", of("Service", "{ports: [{name: a, port: 80}, {name: b, port: 80, protocol: TCP}]}"),
			`ports\[1\].port: 80: same port`},
		{"svc: one family twice", of("Service", "{ports: [{port: 80}], ipFamilies: [IPv6, IPv6]}"), `ipFamilies\[1\]: "IPv6": listed twice`},
		{"svc: unknown family", of("Service", "{ports: [{port: 80}], ipFamilies: [IPv5]}"), `ipFamilies\[0\]: "IPv5": unknown family`},
		{"svc: unknown protocol", of("Service", "{ports: [{port: 80, protocol: HTTP}]}"), `protocol: "HTTP": unknown protocol`},
		{"svc: unknown traffic distribution", of("Service", "{ports: [{port: 80}], trafficDistribution: PreferSameZome}"),
			`did you mean "PreferSameZone"`},
		{"svc: annotations", annotated("{networking.istio.io/traffic-distribution: preferclose, networking.istio.io/exportTo: '., other'}"), ""},
		{"svc: exportTo", annotated("{networking.istio.io/exportTo: '*,other'}"), `"\*" cannot be combined`},
		{"pod: address", of("Pod", "{containers: []}") + "status: {podIP: nonsense}", `status.podIP: "nonsense": not an IP`},

		{"refused: WasmPlugin for access", of("WasmPlugin", "{url: 'oci://a', phase: AUTHZ}"), `WasmPlugin is not enforced`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			expect(t, c.yaml, c.want)
		})
	}
}
