// Package hold has the objects that close a part of the mesh in place of a security object that cannot be used. Sources
// deliver a Hold for each such object of which they know no good version, and report its Problem.
package hold

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// effects are the security kinds that Fairlead enforces, sorted, with what a hold of each does. Without a broken object
// the mesh would accept what the user forbids.
var effects = []struct {
	kind, effect string
	spec         func(selector *typev1beta1.WorkloadSelector, targets []*typev1beta1.PolicyTargetReference) proto.Message
}{
	{"AuthorizationPolicy", "everything is denied",
		func(s *typev1beta1.WorkloadSelector, t []*typev1beta1.PolicyTargetReference) proto.Message {
			return &security.AuthorizationPolicy{Selector: s, TargetRefs: t, Action: security.AuthorizationPolicy_DENY, Rules: []*security.Rule{{}}}
		}},
	{"PeerAuthentication", "STRICT",
		func(s *typev1beta1.WorkloadSelector, _ []*typev1beta1.PolicyTargetReference) proto.Message {
			const strict = security.PeerAuthentication_MutualTLS_STRICT
			return &security.PeerAuthentication{Selector: s, Mtls: &security.PeerAuthentication_MutualTLS{Mode: strict}}
		}},
	{"RequestAuthentication", "every token is refused",
		func(s *typev1beta1.WorkloadSelector, t []*typev1beta1.PolicyTargetReference) proto.Message {
			return &security.RequestAuthentication{Selector: s, TargetRefs: t}
		}},
}

// Effect says what a hold of a kind does until the object is corrected; "" for a kind without holds.
func Effect(kind string) string {
	for _, e := range effects {
		if e.kind == kind {
			return e.effect
		}
	}
	return ""
}

// heldKinds are the kinds that have holds, sorted.
func heldKinds() []string {
	var out []string
	for _, e := range effects {
		out = append(out, e.kind)
	}
	return out
}

// Hold is the object that a source delivers in place of a broken security object of which it knows no good version: a
// PeerAuthentication with mode STRICT, an AuthorizationPolicy that denies everything, or a RequestAuthentication
// without rules. object.Object.Held tells it from a user's object.
type Hold struct {
	Object *object.Object
	// Uncertain is true if the broken object's kind, name or namespace could not be read. It may then be any object
	// of Kinds that the source knows a good version of.
	Uncertain bool
	// Kinds are those that the broken object may be of.
	Kinds []string
}

// Problem says which part of the mesh the hold closes. Sources report it beside the problems of the broken object.
func (h Hold) Problem() object.Problem {
	key := h.Object.Key
	what := "the whole mesh"
	if key.Namespace != "" {
		what = "namespace " + key.Namespace
	}
	attached := h.Object.Body.(interface {
		GetSelector() *typev1beta1.WorkloadSelector
	})
	if labels := attached.GetSelector().GetMatchLabels(); len(labels) > 0 {
		what = fmt.Sprintf("the workloads of namespace %s with labels %v", key.Namespace, labels)
	}
	if t, ok := h.Object.Body.(interface {
		GetTargetRefs() []*typev1beta1.PolicyTargetReference
	}); ok && len(t.GetTargetRefs()) > 0 {
		what = "its targets in namespace " + key.Namespace
	}
	return object.Problem{
		Location: h.Object.Location, Object: key.String(),
		Reason: "cannot be used, and no good version of it is known: it holds " + what + " closed: " + Effect(key.Kind) + " until corrected",
		Remedy: "correct the object, or remove it",
	}
}

// Of returns the holds for a document that validation has refused, one for each kind that it may be of; none if it is
// of no security kind. They have the selector or the targets of the document if these can be read. Without them they
// hold for the namespace, and if that cannot be read, for the mesh.
func Of(doc *manifest.Document) []Hold {
	key, _ := decode.Identify(doc.Tree)
	meant := meantBy(key.Group, key.Kind)
	if len(meant) == 0 {
		if kinds.Find(key.Group, key.Kind) == nil {
			return newHolds(listedIn(doc.Tree), "", "", doc.Location(), attachment{})
		}
		return nil
	}
	meta, readable := doc.Tree["metadata"].(map[string]any)
	if ns, given := meta["namespace"]; !readable || given && ns != nil && key.Namespace != ns || !check.DNSLabel(key.Namespace) {
		key.Namespace = ""
	}
	var at attachment
	if spec, _ := doc.Tree["spec"].(map[string]any); key.Namespace != "" {
		at = attachmentOf(spec)
	}
	return newHolds(meant, key.Namespace, key.Name, doc.Location(), at)
}

// attachment is what an object applies to: all workloads of its namespace if it is empty.
type attachment struct {
	labels  map[string]string
	targets []*typev1beta1.PolicyTargetReference
}

// attachmentOf reads the attachment of a spec. It is empty unless all of it can be read.
func attachmentOf(spec map[string]any) attachment {
	_, one := spec["targetRef"]
	refs, several := spec["targetRefs"]
	selector, selects := spec["selector"].(map[string]any)
	switch {
	case selects && !one && !several:
		return attachment{labels: selectorOf(selector)}
	case one && !several && spec["selector"] == nil:
		refs = []any{spec["targetRef"]}
	case several && !one && spec["selector"] == nil:
	default:
		return attachment{}
	}
	var out attachment
	list, _ := refs.([]any)
	for _, item := range list {
		ref, _ := item.(map[string]any)
		var text [3]string
		for i, field := range []string{"group", "kind", "name"} {
			text[i], _ = ref[field].(string)
		}
		if len(ref) != len(text) || slices.Contains(text[1:], "") {
			return attachment{}
		}
		out.targets = append(out.targets, &typev1beta1.PolicyTargetReference{Group: text[0], Kind: text[1], Name: text[2]})
	}
	return out
}

// selectorOf reads the labels of a selector; nil for one that cannot be read, or that no workload could match.
func selectorOf(selector map[string]any) map[string]string {
	match, _ := selector["matchLabels"].(map[string]any)
	if len(selector) != 1 || len(match) == 0 {
		return nil
	}
	labels := map[string]string{}
	for k, v := range match {
		text, isText := v.(string)
		if !isText || !check.LabelKey(k) || !check.LabelValue(text) {
			return nil
		}
		labels[k] = text
	}
	return labels
}

// listedIn returns the security kinds of the objects that an object of an unread kind lists under items.
func listedIn(tree map[string]any) []string {
	var out []string
	items, _ := tree["items"].([]any)
	for _, item := range items {
		m, _ := item.(map[string]any)
		key, _ := decode.Identify(m)
		out = append(out, meantBy(key.Group, key.Kind)...)
	}
	return sorted(out)
}

func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// Patterns of a text that does not decode. A name must be followed by a delimiter, so that half of one is not taken for
// a whole name.
var (
	securityText = regexp.MustCompile(`(?m)["']?apiVersion["']?\s*:\s*["']?` + regexp.QuoteMeta(kinds.GroupSecurity) + `/`)
	// A tag, an anchor or a block indicator may precede the value.
	kindText  = regexp.MustCompile(`(?m)(?:^|[^-.\w])["']?kind["']?\s*:\s*(?:[!&|>]\S*\s+)*["']?([A-Za-z]*)`)
	itemsText = regexp.MustCompile(`(?m)(?:^|[^-.\w])["']?items["']?\s*:`)
	// commentText is a comment up to any of YAML's line breaks.
	commentText   = regexp.MustCompile(`(?m)^[ \t]*#[^\n\r\x{85}\x{2028}\x{2029}]*`)
	nameText      = regexp.MustCompile(`(?m)(?:^|[\s{,])["']?name["']?\s*:\s*["']?([a-z0-9][-a-z0-9.]*)["']?\s*(?:[,}\n#])`)
	namespaceText = regexp.MustCompile(`(?m)(?:^|[\s{,])["']?namespace["']?\s*:\s*["']?([a-z0-9][-a-z0-9]*)["']?\s*(?:[,}\n#])`)
)

// In returns the holds for the documents of content that do not decode, such as the first half of an object.
func In(file string, content []byte) []Hold {
	var out []Hold
	for _, f := range manifest.Fragments(file, content, mentionsSecurity) {
		out = append(out, holdText(f)...)
	}
	return out
}

// mentionsSecurity reports whether a text has the name of the group or of one of its kinds.
func mentionsSecurity(text []byte) bool {
	return bytes.Contains(text, []byte(kinds.GroupSecurity)) ||
		slices.ContainsFunc(heldKinds(), func(kind string) bool { return bytes.Contains(text, []byte(kind)) })
}

func holdText(f manifest.Fragment) []Hold {
	text := commentText.ReplaceAll(f.Text, nil)
	kind := word(kindText, text)
	if mayBeSeveral(text) {
		// No way to tell which object a namespace belongs to, and how many objects there are.
		return newHolds(namedIn(text), "", "", f.Location(), attachment{})
	}
	var meant []string
	switch {
	case Effect(kind) != "":
		meant = []string{kind}
	case securityText.Match(text):
		meant = meantBy(kinds.GroupSecurity, kind)
	}
	// A namespace that is not in the text may have been cut off with the rest.
	return newHolds(meant, word(namespaceText, text), word(nameText, text), f.Location(), attachment{})
}

// mayBeSeveral reports whether a text may hold more than one object: a List, or documents without a divider. One object
// may repeat its own kind and namespace in an annotation with its last applied configuration.
func mayBeSeveral(text []byte) bool {
	if itemsText.Match(text) {
		return true
	}
	for _, re := range []*regexp.Regexp{kindText, namespaceText} {
		first := word(re, text)
		for w := range words(re, text) {
			if w != first {
				return true
			}
		}
	}
	return false
}

// namedIn returns the security kinds that the objects in a text may be of: those that it names, and what an unreadable
// kind of the group may mean.
func namedIn(text []byte) []string {
	unread := 0
	for range words(securityText, text) {
		unread++
	}
	var named, partly []string
	for kind := range words(kindText, text) {
		if Effect(kind) != "" {
			named = append(named, kind)
			unread--
		} else {
			partly = append(partly, meantBy(kinds.GroupSecurity, kind)...)
		}
		named, partly = sorted(named), sorted(partly)
	}
	if unread > 0 && len(partly) == 0 {
		partly = heldKinds()
	}
	if unread > 0 {
		named = append(named, partly...)
	}
	return sorted(named)
}

// words yields the matches of re one at a time, because a text may have millions.
func words(re *regexp.Regexp, text []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		for {
			m := re.FindSubmatchIndex(text)
			if m == nil {
				return
			}
			w := ""
			if len(m) > 2 {
				w = string(text[m[2]:m[3]])
			}
			if !yield(w) {
				return
			}
			text = text[m[1]:]
		}
	}
}

// OfKey is the hold for an object of which only the key is known; ok is false if it is of no security kind.
func OfKey(key object.Key, location string) (h Hold, ok bool) {
	if key.Group != kinds.GroupSecurity || Effect(key.Kind) == "" {
		return Hold{}, false
	}
	return newHolds([]string{key.Kind}, key.Namespace, key.Name, location, attachment{})[0], true
}

func word(re *regexp.Regexp, text []byte) string {
	m := re.FindSubmatch(text)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// meantBy returns the security kinds that a kind may mean, misspelt or cut off.
func meantBy(group, kind string) []string {
	if Effect(kind) != "" {
		if group == "" || nearest.Name(group, []string{kinds.GroupSecurity}) != "" {
			return []string{kind}
		}
		return nil
	}
	if group != kinds.GroupSecurity {
		return nil
	}
	var out []string
	near := nearest.Name(kind, kinds.NamesOf(group))
	for _, k := range heldKinds() {
		if strings.HasPrefix(k, kind) || near == k {
			out = append(out, k)
		}
	}
	return out
}

var objectName = regexp.MustCompile(`^[a-z0-9][-a-z0-9.]{0,252}$`)

// newHolds makes an object for each of the kinds. It has no creation time, so it wins over others of its rank. If
// namespace, name or kind are uncertain, it gets a name that no user's object has.
func newHolds(of []string, namespace, name, location string, at attachment) []Hold {
	uncertain := namespace == "" || !objectName.MatchString(name) || len(of) > 1
	if uncertain {
		sum := sha256.Sum256([]byte(location))
		name = "0-held-closed-" + hex.EncodeToString(sum[:4])
	}
	var selector *typev1beta1.WorkloadSelector
	if len(at.labels) > 0 {
		selector = &typev1beta1.WorkloadSelector{MatchLabels: at.labels}
	}
	var out []Hold
	for _, e := range effects {
		if !slices.Contains(of, e.kind) {
			continue
		}
		key := object.Key{Group: kinds.GroupSecurity, Kind: e.kind, Namespace: namespace, Name: name}
		o := &object.Object{Key: key, APIVersion: kinds.Canonical(key.Group, key.Kind), Location: location,
			Body: e.spec(selector, at.targets), Held: true}
		digest := sha256.New()
		for _, part := range []string{"held", key.String(), location, fmt.Sprint(at.labels), fmt.Sprint(at.targets)} {
			digest.Write(append([]byte(part), 0))
		}
		o.Digest = [16]byte(digest.Sum(nil)[:16])
		out = append(out, Hold{Object: o, Uncertain: uncertain, Kinds: of})
	}
	return out
}

// IsSecurity reports whether a problem is about an object of a security kind.
func IsSecurity(p object.Problem) bool {
	kind, _, _ := strings.Cut(p.Object, " ")
	return kinds.Find(kinds.GroupSecurity, kind) != nil
}

// OfDamaged returns the holds for a damaged record that may have been a security object's. They hold for the whole
// mesh, because nothing in the record is certain.
func OfDamaged(location string, text []byte) []Hold {
	if !mentionsSecurity(text) {
		return nil
	}
	var named []string
	for _, kind := range heldKinds() {
		if bytes.Contains(text, []byte(kind)) {
			named = append(named, kind)
		}
	}
	if len(named) == 0 {
		named = heldKinds()
	}
	return newHolds(named, "", "", location, attachment{})
}

// Unread is the hold for a source that cannot read any object of a security kind and knows no earlier state of them;
// ok is false for another kind. place names the source. It holds for the whole mesh.
func Unread(group, kind, place string) (h Hold, ok bool) {
	return OfKey(object.Key{Group: group, Kind: kind}, place)
}
