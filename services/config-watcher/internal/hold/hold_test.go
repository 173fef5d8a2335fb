package hold

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// holdsOf returns the holds that a source delivers for a text: those of refused documents and of documents that do not
// decode.
func holdsOf(t *testing.T, text string) []Hold {
	t.Helper()
	docs, problems := manifest.Parse("mesh.yaml", []byte(text))
	var out []Hold
	for _, d := range docs {
		if _, err := validate.Document(d); err != nil {
			out = append(out, Of(d)...)
		}
	}
	if len(problems) > 0 {
		out = append(out, In("mesh.yaml", []byte(text))...)
	}
	return out
}

func TestHolds(t *testing.T) {
	const head = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n"
	const list = "apiVersion: v1\nkind: List\nitems:\n"
	const cut = "apiVersion: security.istio.io/v1\n  kind: PeerAuthentication\n  metadata: {name: b, namespace: apps}\n  spec: {mtls: " +
		"{mode: STRICT"
	item := func(name, namespace string) string {
		return fmt.Sprintf("- apiVersion: security.istio.io/v1\n  kind: PeerAuthentication\n  metadata: {name: %s, namespace: %s}\n  spec: "+
			"{mtls: {mode: STRI}}\n", name, namespace)
	}
	for name, c := range map[string]struct{ text, want string }{
		"good": {head + "metadata: {name: a, namespace: apps}\nspec: {mtls: {mode: STRICT}}\n", ""},
		"bad mode, selector kept": {head +
			"metadata: {name: a, namespace: apps}\nspec: {selector: {matchLabels: {app: x}}, mtls: {mode: STRI}}\n", "apps/a map[app:x]"},
		"unknown field": {head + "metadata: {name: a, namespace: apps}\nspec: {mtls: {mod: STRICT}}\n", "apps/a map[]"},
		"selector cannot be read": {head + "metadata: {name: a, namespace: apps}\nspec: {selector: {matchLabels: {app: [x]}}}\n",
			"apps/a map[]"},
		"selector misspelt": {head + "metadata: {name: a, namespace: apps}\nspec: {selector: {matchLabel: {app: x}}}\n",
			"apps/a map[]"},
		"no namespace is the default one": {head + "metadata: {name: a}\nspec: {mtls: {mode: X}}\n", "default/a map[]"},
		"no metadata":                     {head + "spec: {mtls: {mode: STRICT}}\n", "/? map[]"},
		"namespace is no name":            {head + "metadata: {name: a, namespace: [apps]}\nspec: {}\n", "/? map[]"},
		"no name":                         {head + "metadata: {namespace: apps}\nspec: {}\n", "apps/? map[]"},
		"version": {"apiVersion: security.istio.io/v7\nkind: PeerAuthentication\nmetadata: {name: a, namespace: apps}\n",
			"apps/a map[]"},
		"no version": {"kind: PeerAuthentication\nmetadata: {name: a, namespace: apps}\n", "apps/a map[]"},
		"kind cut off": {"apiVersion: security.istio.io/v1\nkind: PeerAuthent\nmetadata: {name: a, namespace: apps}\n",
			"apps/a map[]"},
		"kind misspelt": {"apiVersion: security.istio.io/v1\nkind: PeerAuthentification\nmetadata: {name: a, namespace: " +
			"apps}\n", "apps/a map[]"},
		"cut off after the namespace": {head + "metadata: {name: a, namespace: apps}\nspec: {mtls: {mo", "apps/a map[]"},
		"cut off in the namespace":    {head + "metadata: {name: a, namespace: ap", "/? map[]"},
		"cut off in the name":         {head + "metadata: {name: a", "/? map[]"},
		"cut off before the kind":     {"apiVersion: security.istio.io/v1\nki", "policy of /? map[] /? map[] tokens of /? map[]"},
		"JSON cut off": {
			`{"apiVersion":"security.istio.io/v1","kind":"PeerAuthentication","metadata":{"name":"a","namespace":"apps"},"spec":{"mt`,
			"apps/a map[]"},
		"policy": {"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: apps}\n" +
			"spec: {selector: {matchLabels: {app: x}}, action: DENY}\n", "policy of apps/a map[app:x]"},
		"policy whose labels no workload has": {"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: " +
			"apps}\nspec: {selector: {matchLabels: {app: '*'}}}\n", "policy of apps/a map[]"},
		"good policy": {"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: apps}\nspec: {}\n", ""},
		"policy, cut": {"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a", "policy of /? map[]"},
		"tokens": {"apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: apps}\n" +
			"spec: {selector: {matchLabels: {app: x}}, jwtRules: [{}]}\n", "tokens of apps/a map[app:x]"},
		"something else that is not valid": {"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: a, namesp", ""},
		"beside good documents": {"apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n---\n" + head +
			"metadata: {name: a, namespace: apps}\nspec: {mtls: {mo", "apps/a map[]"},
		"List cut off":                   {list + item("a", "apps") + "- " + cut, "/? map[]"},
		"List cut off in its first item": {list + "- " + cut, "/? map[]"},
		"List cut off in the kind": {list +
			"- apiVersion: v1\n  kind: Namespace\n- apiVersion: security.istio.io/v1\n  kind: PeerAuthent", "/? map[]"},
		"List cut off before the kind": {list + "- apiVersion: v1\n  kind: Namespace\n- apiVersion: security.istio.io/v1\n  metadata: {",
			"policy of /? map[] /? map[] tokens of /? map[]"},
		"List of others cut off": {list + "- apiVersion: security.istio.io/v1\n  kind: AuthorizationPolicy\n  metadata: {", "policy of /? map[]"},
		"List in JSON, its kind cut off": {
			`{"apiVersion":"v1","items":[{"apiVersion":"security.istio.io/v1","kind":"PeerAuthentication","metadata":{"name":"a","namespace":"apps"}},{"apiV`, "/? map[]"},
		"List with items that are none": {list + "- 5\n" + item("a", "apps") + "- 6\n", "apps/a map[]"},
		"List misspelt":                 {strings.Replace(list, "List", "Lst", 1) + item("a", "apps"), "/? map[]"},
		"List of its kind":              {strings.Replace(list, "List", "PeerAuthenticationList", 1) + item("a", "apps"), "apps/a map[]"},
		"items is no list":              {list + "  a: {kind: 'PeerAuthentication'}\n", "/? map[]"},
		"separator forgotten": {"apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n" + head +
			"metadata: {name: a, namespace: apps}\n", "/? map[]"},
		"two without a separator": {head + "metadata: {name: a, namespace: apps}\n" + head + "metadata: {name: b, namespace: other}\n",
			"/? map[]"},
		"with what was last applied": {head +
			"metadata:\n  annotations:\n    last: |\n      " +
			"{\"kind\":\"PeerAuthentication\",\"metadata\":{\"name\":\"a\",\"namespace\":\"apps\"}}\n  name: a\n  namespace: apps\nspec: {mt",
			"apps/a map[]"},
		"tagged kind": {list + "- {apiVersion: security.istio.io/v1, kind: !!str &k \"PeerAuthentication\", ", "/? map[]"},
		"mentioned in a comment": {"apiVersion: networking.istio.io/v1\nkind: Gateway\n# kind: PeerAuthentication\nmetadata: {name: " +
			"a, namesp", ""},
		"mentioned in a description": {
			"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {annotations: {note: see PeerAuthentication b}, namesp", ""},
		"behind another line's end": {"apiVersion: v1\nkind: List\n# items\ritems: [{kind: PeerAuthentication, ", "/? map[]"},
		"behind too many documents": {strings.Repeat("a: b\n---\n", manifest.MaxDocuments) + head +
			"metadata: {name: a, namespace: apps}\nspec: {mtls: {mode: STRICT}}\n", "apps/a map[]"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, h := range holdsOf(t, c.text) {
				name := h.Object.Key.Name
				if strings.HasPrefix(name, "0-held-closed-") {
					name = "?"
				}
				kind, labels := closes(t, h)
				if p := h.Problem().Error(); !strings.Contains(p, "closed: "+Effect(h.Object.Key.Kind)+" until corrected") ||
					!strings.Contains(p, "mesh.yaml:") {
					t.Errorf("problem %q", p)
				}
				got = append(got, fmt.Sprintf("%s%s/%s %v", kind, h.Object.Key.Namespace, name, labels))
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("held %q, want %q", s, c.want)
			}
		})
	}
}

// closes checks that the object of a hold closes what it applies to. It returns what to write before its name, nothing
// for a PeerAuthentication, and its labels.
func closes(t *testing.T, h Hold) (kind string, labels map[string]string) {
	t.Helper()
	ok := false
	switch spec := h.Object.Body.(type) {
	case *security.PeerAuthentication:
		ok, labels = spec.Mtls.Mode == security.PeerAuthentication_MutualTLS_STRICT, spec.GetSelector().GetMatchLabels()
	case *security.AuthorizationPolicy:
		kind, labels = "policy of ", spec.GetSelector().GetMatchLabels()
		ok = spec.Action == security.AuthorizationPolicy_DENY && len(spec.Rules) == 1 && proto.Equal(spec.Rules[0], &security.Rule{})
	case *security.RequestAuthentication:
		kind, labels = "tokens of ", spec.GetSelector().GetMatchLabels()
		ok = len(spec.JwtRules) == 0
	}
	if !ok || !h.Object.Held {
		t.Errorf("hold %+v", h.Object)
	}
	return kind, labels
}

// TestHoldsOfTargets: the hold of a policy for gateways keeps its targets, unless these cannot be read.
func TestHoldsOfTargets(t *testing.T) {
	const gateway = "{group: gateway.networking.k8s.io, kind: Gateway, name: g}"
	for name, c := range map[string]struct {
		attached string
		targets  int
	}{
		"targets":              {"targetRefs: [" + gateway + ", " + gateway + "]", 2},
		"one target":           {"targetRef: " + gateway, 1},
		"both":                 {"targetRef: " + gateway + ", targetRefs: [" + gateway + "]", 0},
		"beside a selector":    {"selector: {matchLabels: {a: b}}, targetRefs: [" + gateway + "]", 0},
		"a target of no name":  {"targetRefs: [" + gateway + ", {group: gateway.networking.k8s.io, kind: Gateway}]", 0},
		"a misspelt field":     {"targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, nam: g}]", 0},
		"a target that is one": {"targetRefs: " + gateway, 0},
	} {
		t.Run(name, func(t *testing.T) {
			holds := holdsOf(t, "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: apps}\n"+
				"spec: {action: DENY, "+c.attached+"}\n")
			if len(holds) != 1 {
				t.Fatalf("%d holds", len(holds))
			}
			spec := holds[0].Object.Body.(*security.AuthorizationPolicy)
			if len(spec.TargetRefs) != c.targets || spec.Selector != nil {
				t.Errorf("targets %v, selector %v", spec.TargetRefs, spec.Selector)
			}
		})
	}
}

// TestHoldOfMistakenGroup: a PeerAuthentication with a misspelt group gets the hold of its namespace.
func TestHoldOfMistakenGroup(t *testing.T) {
	for group, want := range map[string]bool{"security.istio.oi/v1": true, "v1": true, "example.com/v1": false} {
		docs, _ := manifest.Parse("m.yaml",
			[]byte("apiVersion: "+group+"\nkind: PeerAuthentication\nmetadata: {name: a, namespace: apps}\nspec: {mtls: {mode: STRICT}}\n"))
		if _, err := validate.Document(docs[0]); err == nil {
			t.Errorf("%s: accepted", group)
		}
		if held := len(Of(docs[0])) > 0; held != want {
			t.Errorf("%s: held %v", group, held)
		}
	}
}
