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
	"strings"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

// peerAuthentication is the one security kind that Fairlead enforces. Without a broken PeerAuthentication the mesh
// would accept plaintext that the user forbids; hence Hold. Objects of the other kinds of the group are always refused,
// see check.Checker.Unenforced.
const peerAuthentication = "PeerAuthentication"

// Hold is the object that a source delivers in place of a broken security object of which it knows no good version: a
// PeerAuthentication with mode STRICT.
type Hold struct {
	Object *object.Object
	// Uncertain is true if the broken object's name or namespace could not be read. It may then be any object that the
	// source knows a good version of.
	Uncertain bool
}

// Problem says which part of the mesh the hold closes. Sources report it beside the problems of the broken object.
func (h Hold) Problem() object.Problem {
	what := "the whole mesh"
	if ns := h.Object.Key.Namespace; ns != "" {
		what = "namespace " + ns
	}
	if labels := h.Object.Body.(*security.PeerAuthentication).GetSelector().GetMatchLabels(); len(labels) > 0 {
		what = fmt.Sprintf("the workloads of namespace %s with labels %v", h.Object.Key.Namespace, labels)
	}
	return object.Problem{
		Location: h.Object.Location, Object: h.Object.Key.String(),
		Reason: "cannot be used, and no good version of it is known: it holds " + what + " closed: STRICT until corrected",
		Remedy: "correct the object, or remove it",
	}
}

// Of returns the hold for a document that validation has refused; ok is false if it is no PeerAuthentication. The
// hold has the selector of the document if that can be read. Without one it holds for the namespace, and if that cannot
// be read, for the mesh.
func Of(doc *manifest.Document) (h Hold, ok bool) {
	key, _ := decode.Identify(doc.Tree)
	if !mayBePeerAuthentication(key.Group, key.Kind) {
		if kinds.Find(key.Group, key.Kind) == nil && listsPeerAuthentication(doc.Tree) {
			return newHold("", "", doc.Location(), nil), true
		}
		return Hold{}, false
	}
	meta, readable := doc.Tree["metadata"].(map[string]any)
	if ns, given := meta["namespace"]; !readable || given && ns != nil && key.Namespace != ns || !check.DNSLabel(key.Namespace) {
		key.Namespace = ""
	}
	labels := map[string]string{}
	spec, _ := doc.Tree["spec"].(map[string]any)
	selector, _ := spec["selector"].(map[string]any)
	match, _ := selector["matchLabels"].(map[string]any)
	for k, v := range match {
		text, isText := v.(string)
		if !isText {
			labels = nil // an unknown selector: hold the whole namespace
			break
		}
		labels[k] = text
	}
	if key.Namespace == "" || len(selector) != 1 {
		labels = nil
	}
	return newHold(key.Namespace, key.Name, doc.Location(), labels), true
}

// listsPeerAuthentication reports whether an object of an unread kind lists a PeerAuthentication under items.
func listsPeerAuthentication(tree map[string]any) bool {
	items, _ := tree["items"].([]any)
	for _, item := range items {
		m, _ := item.(map[string]any)
		if key, _ := decode.Identify(m); mayBePeerAuthentication(key.Group, key.Kind) {
			return true
		}
	}
	return false
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
	for _, f := range manifest.Fragments(file, content, func(text []byte) bool {
		return bytes.Contains(text, []byte(kinds.GroupSecurity)) || bytes.Contains(text, []byte(peerAuthentication))
	}) {
		if h, ok := holdText(f); ok {
			out = append(out, h)
		}
	}
	return out
}

func holdText(f manifest.Fragment) (h Hold, ok bool) {
	text := commentText.ReplaceAll(f.Text, nil)
	kind := word(kindText, text)
	if mayBeSeveral(text) {
		// No way to tell which object a namespace belongs to, and how many objects there are.
		if !namesPeerAuthentication(text) {
			return Hold{}, false
		}
		return newHold("", "", f.Location(), nil), true
	}
	switch {
	case kind == peerAuthentication:
	case securityText.Match(text) && mayBePeerAuthentication(kinds.GroupSecurity, kind):
	default:
		return Hold{}, false
	}
	// A namespace that is not in the text may have been cut off with the rest.
	return newHold(word(namespaceText, text), word(nameText, text), f.Location(), nil), true
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

// namesPeerAuthentication reports whether one of the objects in a text is a PeerAuthentication, or has its group and an
// unreadable kind.
func namesPeerAuthentication(text []byte) bool {
	unread := 0
	for range words(securityText, text) {
		unread++
	}
	for kind := range words(kindText, text) {
		if kind == peerAuthentication {
			return true
		}
		if kinds.Find(kinds.GroupSecurity, kind) != nil {
			unread--
		}
	}
	return unread > 0
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

// OfKey is the hold for an object of which only the key is known; ok is false if it is no PeerAuthentication.
func OfKey(key object.Key, location string) (h Hold, ok bool) {
	if key.Group != kinds.GroupSecurity || key.Kind != peerAuthentication {
		return Hold{}, false
	}
	return newHold(key.Namespace, key.Name, location, nil), true
}

func word(re *regexp.Regexp, text []byte) string {
	m := re.FindSubmatch(text)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// mayBePeerAuthentication reports whether a kind is PeerAuthentication, misspelt or cut off included.
func mayBePeerAuthentication(group, kind string) bool {
	if kind == peerAuthentication {
		return group == "" || nearest.Name(group, []string{kinds.GroupSecurity}) != ""
	}
	if group != kinds.GroupSecurity {
		return false
	}
	return kinds.Find(group, kind) == nil &&
		(strings.HasPrefix(peerAuthentication, kind) || nearest.Name(kind, kinds.NamesOf(group)) == peerAuthentication)
}

var objectName = regexp.MustCompile(`^[a-z0-9][-a-z0-9.]{0,252}$`)

// newHold makes the object. It has no creation time, so it wins over others of its rank. If namespace or name are
// unknown, it gets a name that no user's object has.
func newHold(namespace, name, location string, labels map[string]string) Hold {
	h := Hold{Uncertain: namespace == "" || !objectName.MatchString(name)}
	if h.Uncertain {
		sum := sha256.Sum256([]byte(location))
		name = "0-held-closed-" + hex.EncodeToString(sum[:4])
	}
	spec := &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: security.PeerAuthentication_MutualTLS_STRICT}}
	if len(labels) > 0 {
		spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: labels}
	}
	key := object.Key{Group: kinds.GroupSecurity, Kind: peerAuthentication, Namespace: namespace, Name: name}
	h.Object = &object.Object{Key: key, APIVersion: kinds.Canonical(key.Group, key.Kind), Location: location, Body: spec, Held: true}
	digest := sha256.New()
	for _, part := range []string{"held", key.String(), location, fmt.Sprint(labels)} {
		digest.Write(append([]byte(part), 0))
	}
	h.Object.Digest = [16]byte(digest.Sum(nil)[:16])
	return h
}

// IsSecurity reports whether a problem is about an object of a security kind.
func IsSecurity(p object.Problem) bool {
	kind, _, _ := strings.Cut(p.Object, " ")
	return kinds.Find(kinds.GroupSecurity, kind) != nil
}

// OfDamaged is the hold for a damaged record that may have been a PeerAuthentication's. It holds for the whole mesh,
// because nothing in the record is certain.
func OfDamaged(location string, text []byte) (h Hold, ok bool) {
	if !bytes.Contains(text, []byte(kinds.GroupSecurity)) && !bytes.Contains(text, []byte(peerAuthentication)) {
		return Hold{}, false
	}
	return newHold("", "", location, nil), true
}

// Unread is the hold for a source that cannot read any PeerAuthentication and knows no earlier state of them. place
// names the source. It holds for the whole mesh.
func Unread(place string) Hold { return newHold("", "", place, nil) }

// StandsFor reports whether Unread stands for the objects of a kind that cannot be read.
func StandsFor(group, name string) bool {
	return group == kinds.GroupSecurity && name == peerAuthentication
}
