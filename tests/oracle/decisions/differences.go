package decisions

import (
	"fmt"
	"regexp"
	"strings"

	"fairlead.dev/tests/internal/policygen"
)

// Difference is a row of docs/reference/authorization-differences.md: a decision that is not Istio's on purpose.
type Difference struct {
	// What is different, what Istio does and the Reason, as the page says them.
	What, Istio, Reason string
	// covers tells whether the row may explain different answers. Rows without it explain their example alone: what is
	// drawn has nothing of the kind.
	covers func(Answered) bool
	// instead returns the request that both sides answer as Fairlead answers this one; nil if there is none.
	instead func(policygen.Request) policygen.Request
	// Example shows it.
	Example Example
}

// Example is a set of policies, and a request to their workload about which the sides differ.
type Example struct {
	// YAML is of the namespace "own".
	YAML    string
	Request policygen.Request
	// Istio and Fairlead are the answers, as a gate.Answer writes its status.
	Istio, Fairlead string
}

// caller is a connection to a workload of an example.
func caller() policygen.Connection {
	return policygen.Connection{Caller: policygen.TrustDomain + "/ns/shop/sa/web", Source: "127.0.0.2", Remote: "203.0.113.7", Port: httpPort}
}

// Differences are all of them.
var Differences = []Difference{
	{
		What:  "`when` with `request.headers[NAME]`, for a header that a request has several times",
		Istio: "compares every line by itself: one that matches is enough, and a second line dodges a DENY by `notValues`",
		Reason: "The values count as one, joined by commas, as Istio's reference says and as an application reads them (RFC 9110, " +
			"section 5.2).",
		covers: func(a Answered) bool { return len(repeated(a)) > 0 }, instead: joined,
		Example: Example{
			YAML: `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: only-users, namespace: own}
spec:
  action: DENY
  rules:
  - when: [{key: "request.headers[x-role]", notValues: [user]}]
`,
			Request: policygen.Request{Connection: caller(), Method: "GET", Host: "shop.test", Path: "/",
				Headers: []policygen.Header{{Name: "x-role", Value: "user"}, {Name: "x-role", Value: "admin"}}},
			Istio: "200", Fairlead: "403",
		},
	},
	{
		What:   "`{*}` and `{**}` in paths, for a path with characters that no path of a URI has, such as `[`",
		Istio:  "does not match the path, so that such a character dodges a DENY",
		Reason: "`{*}` stands for any one segment and `{**}` for any rest, as Istio's reference says; applications take such paths.",
		covers: func(a Answered) bool { return templated(a.Set) && proper(a.Request).Path != a.Request.Path }, instead: proper,
		Example: Example{
			YAML: `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-items, namespace: own}
spec:
  action: DENY
  rules:
  - to: [{operation: {paths: ["/api/{*}/items"]}}]
`,
			Request: policygen.Request{Connection: caller(), Method: "GET", Host: "shop.test", Path: "/api/a[0]/items"},
			Istio:   "200", Fairlead: "403",
		},
	},
}

// templated tells whether a path in the set has an operator.
func templated(s policygen.Set) bool {
	for _, o := range s.Objects {
		for _, r := range o.Policy().GetRules() {
			for _, to := range r.GetTo() {
				for _, p := range append(append([]string{}, to.GetOperation().GetPaths()...), to.GetOperation().GetNotPaths()...) {
					if strings.Contains(p, "{*}") || strings.Contains(p, "{**}") {
						return true
					}
				}
			}
		}
	}
	return false
}

// foreign are characters that a path of a URI does not have (RFC 3986, section 3.3).
var foreign = regexp.MustCompile(`[^a-zA-Z0-9._~%!$&'()*+,;:@=/-]`)

// proper is the request with a letter for each of these characters.
func proper(r policygen.Request) policygen.Request {
	path, query, ok := strings.Cut(r.Path, "?")
	r.Path = foreign.ReplaceAllString(path, "x")
	if ok {
		r.Path += "?" + query
	}
	return r
}

// repeated lists the headers that conditions of the set name and that the request has several times.
func repeated(a Answered) []string {
	lines := map[string]int{}
	for _, h := range a.Request.Headers {
		lines[strings.ToLower(h.Name)]++
	}
	for _, t := range a.Request.Tokens {
		lines[strings.ToLower(t.Header)]++
	}
	var out []string
	for _, o := range a.Set.Objects {
		for _, r := range o.Policy().GetRules() {
			for _, c := range r.GetWhen() {
				name, ok := strings.CutPrefix(c.GetKey(), "request.headers[")
				name = strings.ToLower(strings.TrimSuffix(name, "]"))
				if ok && lines[name] > 1 {
					out = append(out, name)
				}
			}
		}
	}
	return out
}

// joined is the request with one line for each header, whose values are joined by commas.
func joined(r policygen.Request) policygen.Request {
	at := map[string]int{}
	var headers []policygen.Header
	for _, h := range r.Headers {
		name := strings.ToLower(h.Name)
		if i, ok := at[name]; ok {
			headers[i].Value += "," + h.Value
			continue
		}
		at[name] = len(headers)
		headers = append(headers, h)
	}
	r.Headers = headers
	return r
}

// explain finds the row for different answers; nil if there is none.
func explain(a Answered) *Difference {
	for i, d := range Differences {
		if d.covers != nil && d.covers(a) {
			return &Differences[i]
		}
	}
	return nil
}

// Page is docs/reference/authorization-differences.md.
func Page() string {
	var b strings.Builder
	b.WriteString(`# Where a decision is not Istio's

Fairlead lets pass what Istio lets pass, by AuthorizationPolicies and RequestAuthentications, and refuses with the same
status what Istio refuses, except for these differences. ` + "`make oracle`" + ` gives the inputs of the tests of Istio's
builder and random sets of policies to istiod and to Fairlead, runs the filters of both in one Envoy, and sends both the
same requests and connections (` + "`LONG=1`" + `: 1,000 random sets, 20,000 requests). It fails for an answer that differs
without a row here, and for a row whose example does not show it. Compared are the status, and the headers that an
application gets. istiod runs with ` + "`PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS`" + `. This page is generated from the
table of the test (` + "`make golden`" + `).

Not compared are key sets that Envoy refuses as Istio passes them on: Istio's listeners are then rejected as a whole.

| what | Istio | why Fairlead differs |
|---|---|---|
`)
	for _, d := range Differences {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", d.What, d.Istio, d.Reason)
	}
	b.WriteString("\n## Examples\n")
	for _, d := range Differences {
		e := d.Example
		fmt.Fprintf(&b, "\n### %s\n\nTo `%s %s`%s Istio answers %s, Fairlead %s:\n\n```yaml\n%s```\n", d.What, e.Request.Method, e.Request.Path,
			withHeaders(e.Request), e.Istio, e.Fairlead, e.YAML)
	}
	return b.String()
}

func withHeaders(r policygen.Request) string {
	var lines []string
	for _, h := range r.Headers {
		lines = append(lines, fmt.Sprintf("`%s: %s`", h.Name, h.Value))
	}
	if len(lines) == 0 {
		return ""
	}
	return " with " + strings.Join(lines, " and ")
}
