package decisions

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	meshapi "istio.io/api/mesh/v1alpha1"
	api "istio.io/api/security/v1beta1"

	"fairlead.dev/pkg/authz"
	"fairlead.dev/tests/internal/gate"
	"fairlead.dev/tests/internal/policygen"
)

// rawPaths are spellings of paths as a caller may send them.
func rawPaths() []string {
	out := []string{"/", "//", "/.", "/..", "*", "/admin", "/admin/", "/public", "/admin/x/y/z"}
	for _, format := range []string{
		"/admin%s/x", "/admin/%s/x", "/%sadmin/x", "%s/admin/x", "/admin/x%s", "/public%s/admin/x", "/public/%s/admin/x",
		"/adm%sin/x", "/admin/%s",
	} {
		for _, odd := range []string{
			"", "/", "//", "/./", "/../", ".", "..", "%2e", "%2E", "%2e%2e", ".%2e", "%2f", "%2F", "%2f%2f", "%5c", "%5C", `\`, "%2f..%2f", "..%2f",
			"..;", ";", ";a=b", ";/../", "%3b", "%20", "%00", "%09", "%25", "%252f", "%255c", "%252e%252e", "%2%66", "%%32%66",
			"%c0%af", "%e0%80%af",
			"%ff", "\xff", "\xc0\xaf", "\u00e9", "%c3%a9", "\u2215", "%u002f", "%", "%2", "%zz", "?", "?/../", "?x=/admin/x", "#", "#/../", "%23", "%3f",
			"+", "*", "{*}", "x", "X", "%61", "%41", "|", "\"", "<>", "^", "`", ":", "@", "!", "~", "%7e", "%7E",
		} {
			out = append(out, strings.Replace(format, "%s", odd, 1))
		}
	}
	out = append(out,
		"/ADMIN/x", "/Admin/X", "/%61dmin/x", "/%41dmin/x", "/admin/%78", "/a%64min%2fx", "/admin%2fx%2f", "http://host/admin/x", "https://host//admin/x",
		"admin/x", "/admin/x?q", "/admin/x?", "/admin/x;v=1?q", "/public/..%2fadmin/x", "/public/%2e%2e/admin/x", "/public/.%2E/admin/x",
		`/public\..\admin\x`, "/public/%5c../admin/x", "/./admin/./x", "/admin/.//x", "/admin/y/..//x", "/%2fadmin/x", "//admin//x//",
		"/public/.;/admin/x", "/public/..;a=b/admin/x", "/public/..;a/../admin/x", "/public/%2e%2e;/admin/x", "/public/..%3b/admin/x",
		"/a/...;/x",
		"/public/..;", "/public/.;a", "/a/..;/..;/admin", "/..;x", "///", "/%41%7e%2d%5b%7B", "/a[b]", "/a%2%6", "/a%%%41%42", "/a%4%31",
		"/a%%34%31b", "/a%%341", "/p/.%2e;/x", `/p\..;\x`, "/p/.%2e", "/é\"<>^`{|}",
	)
	slices.Sort(out)
	return slices.Compact(out)
}

// foreignBytes begin paths that HTTP/1.1 refuses, and HTTP/2 may not.
var foreignBytes = regexp.MustCompile(`^/.*[^\x00-\x7f]`)

// patterns of paths, with what they mean about bytes.
var patterns = map[string]*regexp.Regexp{
	"/admin/x":    regexp.MustCompile(`^/admin/x$`),
	"/admin*":     regexp.MustCompile(`^/admin`),
	"/admin/*":    regexp.MustCompile(`^/admin/`),
	"*/x":         regexp.MustCompile(`/x$`),
	"/admin/{*}":  regexp.MustCompile(`^/admin/[^/]+$`),
	"/admin/{**}": regexp.MustCompile(`^/admin/`),
	"/{*}/x":      regexp.MustCompile(`^/[^/]+/x$`),
	"/{**}/x":     regexp.MustCompile(`^/.*/x$`),
}

// reading is how an application reads a path that normalises as the mesh does.
func reading(mode, raw string) string {
	raw, _, _ = strings.Cut(raw, "#")
	raw, _, _ = strings.Cut(raw, "?")
	if mode == "NONE" {
		return raw
	}
	if mode == "DECODE_AND_MERGE_SLASHES" {
		raw = regexp.MustCompile(`(?i)%2f`).ReplaceAllString(raw, "/")
		raw = regexp.MustCompile(`(?i)%5c`).ReplaceAllString(raw, `\`)
	}
	raw = regexp.MustCompile(`(?i)%(2d|2e|5f|7e|3\d|4[1-9a-f]|5[0-9a]|6[1-9a-f]|7[0-9a])`).ReplaceAllStringFunc(raw, func(s string) string {
		var c byte
		_, _ = fmt.Sscanf(s, "%%%02x", &c)
		return string(c)
	})
	raw = strings.ReplaceAll(raw, `\`, "/")
	merged := mode == "MERGE_SLASHES" || mode == "DECODE_AND_MERGE_SLASHES"
	if merged {
		raw = regexp.MustCompile(`/+`).ReplaceAllString(raw, "/")
	}
	// path.Clean would merge slashes: dots are resolved between placeholders for empty segments.
	segments := strings.Split(raw, "/")
	for i, s := range segments {
		if s == "" {
			segments[i] = "\x00"
		}
	}
	last := segments[len(segments)-1]
	clean := path.Clean("/" + strings.Join(segments[1:], "/"))
	if last == "." || last == ".." {
		clean = strings.TrimSuffix(clean, "/") + "/"
	}
	return strings.ReplaceAll(clean, "\x00", "")
}

type pathForm struct {
	name    string
	action  api.AuthorizationPolicy_Action
	operate func(pattern string) *api.Operation
	// open tells whether a path that the pattern matches, or matches not, is let through.
	open func(matches bool) bool
}

var pathForms = []pathForm{
	{"ALLOW paths", api.AuthorizationPolicy_ALLOW, func(p string) *api.Operation { return &api.Operation{Paths: []string{p}} },
		func(m bool) bool { return m }},
	{"ALLOW notPaths", api.AuthorizationPolicy_ALLOW, func(p string) *api.Operation { return &api.Operation{NotPaths: []string{p}} },
		func(m bool) bool { return !m }},
	{"DENY paths", api.AuthorizationPolicy_DENY, func(p string) *api.Operation { return &api.Operation{Paths: []string{p}} },
		func(m bool) bool { return !m }},
	{"DENY notPaths", api.AuthorizationPolicy_DENY, func(p string) *api.Operation { return &api.Operation{NotPaths: []string{p}} },
		func(m bool) bool { return m }},
}

// TestPathsDoNotBypass sends many spellings of paths to policies of all forms under every normalisation: what Envoy
// decides is what authz decides about the path that the application gets, and the application reads no path as another
// one than that which was decided about.
func TestPathsDoNotBypass(t *testing.T) {
	raw := rawPaths()
	for _, mode := range []string{"NONE", "BASE", "MERGE_SLASHES", "DECODE_AND_MERGE_SLASHES"} {
		t.Run(mode, func(t *testing.T) {
			b := newOwn(t)
			b.ownPaths = true
			b.again = func(r policygen.Request, a [gate.Sides]gate.Answer) bool {
				return a[0].Status == 400 && foreignBytes.MatchString(r.Path)
			}
			m := Mesh{TrustDomain: policygen.TrustDomain, Paths: mode}
			add := func(name string, objects ...policygen.Object) policygen.Set {
				n := len(m.Sets)
				s := policygen.Set{Name: name, Namespace: fmt.Sprintf("p%d", n), Address: policygen.AddressOf(n)}
				s.Labels = map[string]string{"set": s.Namespace}
				for i := range objects {
					objects[i].Namespace = s.Namespace
				}
				s.Objects = objects
				m.Sets = append(m.Sets, s)
				return s
			}
			add("open")
			type decided struct {
				form    pathForm
				pattern string
				rules   *authz.Set
			}
			by := map[string]decided{}
			for pattern := range patterns {
				for _, form := range pathForms {
					spec := &api.AuthorizationPolicy{Action: form.action, Rules: []*api.Rule{{To: []*api.Rule_To{{
						Operation: form.operate(pattern),
					}}}}}
					s := add(form.name+" "+pattern, policygen.Object{Kind: policygen.AuthorizationPolicy, Name: "p", Spec: spec})
					by[s.Namespace] = decided{form, pattern, authz.Compile([]authz.Policy{{Namespace: s.Namespace, Name: "p", Spec: spec}},
						authz.Options{TrustDomain: policygen.TrustDomain})}
				}
			}
			ours := startFairlead(t, b.programs, m)
			requests := func(policygen.Set) []policygen.Request {
				var out []policygen.Request
				for _, p := range raw {
					out = append(out, policygen.Request{Connection: policygen.Connection{Source: "127.0.0.2", Remote: "192.0.2.1", Port: httpPort},
						Method: "GET", Host: "host", Path: p})
				}
				return out
			}
			answers := map[string]map[string][gate.Sides]gate.Answer{}
			b.ask(t, m.Sets, [gate.Sides]side{ours.beside, ours.within}, requests, func(a Answered) {
				if answers[a.Set.Namespace] == nil {
					answers[a.Set.Namespace] = map[string][gate.Sides]gate.Answer{}
				}
				answers[a.Set.Namespace][a.Request.Path] = a.Answers
			})
			through, refused := 0, 0
			for _, p := range raw {
				got, ok := strings.CutPrefix(strings.Split(answers[m.Sets[0].Namespace][p][0].Seen, " ")[0], "path=")
				if !ok {
					refused++
					for _, a := range answers {
						for _, side := range a[p] {
							if side.Status == 200 {
								t.Errorf("%q is refused by Envoy only without a policy", p)
							}
						}
					}
					continue
				}
				through++
				kind := meshapi.MeshConfig_ProxyPathNormalization_NormalizationType(
					meshapi.MeshConfig_ProxyPathNormalization_NormalizationType_value[mode])
				if said := authz.NormalisePath(p, kind); strings.HasPrefix(p, "/") && said != got {
					t.Errorf("%q, which the application gets as %q, is %q by authz", p, got, said)
				}
				read := reading(mode, got)
				for _, s := range m.Sets[1:] {
					d := by[s.Namespace]
					decision := d.rules.Decide(authz.Request{Method: "GET", Host: "host", Path: got, Port: httpPort}).Outcome == authz.Allowed
					for _, a := range answers[s.Namespace][p] {
						open := a.Status == 200
						if open != decision || !open && a.Status != 403 {
							t.Errorf("%s: %q, which the application gets as %q: Envoy answers %s, authz %v", s.Name, p, got, a, decision)
						}
						if open && !d.form.open(patterns[d.pattern].MatchString(read)) {
							t.Errorf("%s: %q, which the application gets as %q, is let through, and may be read as %q", s.Name, p, got, read)
						}
					}
				}
			}
			if t.Logf("%d paths reach the application, Envoy refuses %d", through, refused); through < 200 {
				t.Error("too few to say anything")
			}
		})
	}
}
