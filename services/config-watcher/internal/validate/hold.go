package validate

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
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
)

// peerAuthentication is the security kind that Fairlead enforces. One that is left out would open what it closes; the
// other kinds of its group are refused however they are written, see refuseUnenforced.
const peerAuthentication = "PeerAuthentication"

// Hold is what a source puts in the place of a security object that it cannot use, if it knows no good version: a
// PeerAuthentication with mode STRICT.
type Hold struct {
	Object *object.Object
	// Uncertain is true if the broken object's name or namespace could not be read: it may be any of those that the
	// source knows a good version of.
	Uncertain bool
}

// Problem tells what the hold does, for a user to find beside what is wrong with the object.
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

// HoldOf returns the hold for a document that Document has refused; ok is false if the document is no
// PeerAuthentication. The selector is kept if it can be read. Without one the object would have been its namespace's,
// and where not even the namespace can be read, the mesh's.
func HoldOf(doc *manifest.Document) (h Hold, ok bool) {
	key, _ := Identify(doc.Tree)
	if !mayBePeerAuthentication(key.Group, key.Kind) {
		if _, known := ScopeOf(key.Group, key.Kind); !known && listsPeerAuthentication(doc.Tree) {
			return hold("", "", doc.Location(), nil), true
		}
		return Hold{}, false
	}
	meta, readable := doc.Tree["metadata"].(map[string]any)
	if ns, given := meta["namespace"]; !readable || given && ns != nil && key.Namespace != ns || !dnsLabel(key.Namespace) {
		key.Namespace = ""
	}
	labels := map[string]string{}
	spec, _ := doc.Tree["spec"].(map[string]any)
	selector, _ := spec["selector"].(map[string]any)
	match, _ := selector["matchLabels"].(map[string]any)
	for k, v := range match {
		text, isText := v.(string)
		if !isText {
			labels = nil // what it would select is not known: all of the namespace
			break
		}
		labels[k] = text
	}
	if key.Namespace == "" || len(selector) != 1 {
		labels = nil
	}
	return hold(key.Namespace, key.Name, doc.Location(), labels), true
}

// listsPeerAuthentication tells a list of them whose own kind is none that is read.
func listsPeerAuthentication(tree map[string]any) bool {
	items, _ := tree["items"].([]any)
	for _, item := range items {
		m, _ := item.(map[string]any)
		if key, _ := Identify(m); mayBePeerAuthentication(key.Group, key.Kind) {
			return true
		}
	}
	return false
}

// Words of a text that does not decode. What is cut off in the middle is not taken for a whole name.
var (
	securityText = regexp.MustCompile(`(?m)["']?apiVersion["']?\s*:\s*["']?` + regexp.QuoteMeta(GroupSecurity) + `/`)
	// A value may have a tag, an anchor or a block's sign before it.
	kindText  = regexp.MustCompile(`(?m)(?:^|[^-.\w])["']?kind["']?\s*:\s*(?:[!&|>]\S*\s+)*["']?([A-Za-z]*)`)
	itemsText = regexp.MustCompile(`(?m)(?:^|[^-.\w])["']?items["']?\s*:`)
	// commentText is a line of comment, up to whatever YAML takes for a line's end.
	commentText   = regexp.MustCompile(`(?m)^[ \t]*#[^\n\r\x{85}\x{2028}\x{2029}]*`)
	nameText      = regexp.MustCompile(`(?m)(?:^|[\s{,])["']?name["']?\s*:\s*["']?([a-z0-9][-a-z0-9.]*)["']?\s*(?:[,}\n#])`)
	namespaceText = regexp.MustCompile(`(?m)(?:^|[\s{,])["']?namespace["']?\s*:\s*["']?([a-z0-9][-a-z0-9]*)["']?\s*(?:[,}\n#])`)
)

// HoldsIn returns the holds for the documents of content that do not even decode, such as the first half of one.
func HoldsIn(file string, content []byte) []Hold {
	var out []Hold
	for _, f := range manifest.Fragments(file, content, func(text []byte) bool {
		return bytes.Contains(text, []byte(GroupSecurity)) || bytes.Contains(text, []byte(peerAuthentication))
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
	if several(text) {
		// Whose of the objects a namespace is, and how many there are, nothing tells.
		if !namesPeerAuthentication(text) {
			return Hold{}, false
		}
		return hold("", "", f.Location(), nil), true
	}
	switch {
	case kind == peerAuthentication:
	case securityText.Match(text) && mayBePeerAuthentication(GroupSecurity, kind):
	default:
		return Hold{}, false
	}
	// A namespace that is not written may have been cut off with the rest.
	return hold(word(namespaceText, text), word(nameText, text), f.Location(), nil), true
}

// several tells a text that may be of more than one object: a List, or documents without a line between them. One
// object may name its kind and namespace again, in an annotation with what was last applied.
func several(text []byte) bool {
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

// namesPeerAuthentication tells a text in which one of the objects is a PeerAuthentication, or is of its group and of a
// kind that cannot be read.
func namesPeerAuthentication(text []byte) bool {
	unread := 0
	for range words(securityText, text) {
		unread++
	}
	for kind := range words(kindText, text) {
		if kind == peerAuthentication {
			return true
		}
		if _, known := ScopeOf(GroupSecurity, kind); known {
			unread--
		}
	}
	return unread > 0
}

// words are what re finds, one at a time: a text may have millions.
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

// HoldKey is the hold for an object of which nothing can be read but its key; ok is false if that is no
// PeerAuthentication's.
func HoldKey(key object.Key, location string) (h Hold, ok bool) {
	if key.Group != GroupSecurity || key.Kind != peerAuthentication {
		return Hold{}, false
	}
	return hold(key.Namespace, key.Name, location, nil), true
}

func word(re *regexp.Regexp, text []byte) string {
	m := re.FindSubmatch(text)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// mayBePeerAuthentication tells the kind, however it is misspelt or cut off.
func mayBePeerAuthentication(group, kind string) bool {
	if kind == peerAuthentication {
		return group == "" || nearest.Name(group, []string{GroupSecurity}) != ""
	}
	if group != GroupSecurity {
		return false
	}
	_, known := ScopeOf(group, kind)
	return !known && (strings.HasPrefix(peerAuthentication, kind) || nearest.Name(kind, kindNames(group)) == peerAuthentication)
}

var objectName = regexp.MustCompile(`^[a-z0-9][-a-z0-9.]{0,252}$`)

// hold makes the object. It has no creation time, so among others of its rank it goes first. If it is not certain whose
// it is, it has a name that no object has.
func hold(namespace, name, location string, labels map[string]string) Hold {
	h := Hold{Uncertain: namespace == "" || !objectName.MatchString(name)}
	if h.Uncertain {
		sum := sha256.Sum256([]byte(location))
		name = "0-held-closed-" + hex.EncodeToString(sum[:4])
	}
	spec := &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: security.PeerAuthentication_MutualTLS_STRICT}}
	if len(labels) > 0 {
		spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: labels}
	}
	key := object.Key{Group: GroupSecurity, Kind: peerAuthentication, Namespace: namespace, Name: name}
	h.Object = &object.Object{Key: key, APIVersion: Canonical(key.Group, key.Kind), Location: location, Body: spec, Held: true}
	digest := sha256.New()
	for _, part := range []string{"held", key.String(), location, fmt.Sprint(labels)} {
		digest.Write(append([]byte(part), 0))
	}
	h.Object.Digest = [16]byte(digest.Sum(nil)[:16])
	return h
}

// IsSecurity tells the problems of objects that protect: what is refused of them is not enforced.
func IsSecurity(p object.Problem) bool {
	kind, _, _ := strings.Cut(p.Object, " ")
	k, _ := find(GroupSecurity, kind)
	return k != nil
}

// HoldDamaged is the hold for a damaged record that may have been a PeerAuthentication's: nothing in it is certain, so
// it holds for the whole mesh.
func HoldDamaged(location string, text []byte) (h Hold, ok bool) {
	if !bytes.Contains(text, []byte(GroupSecurity)) && !bytes.Contains(text, []byte(peerAuthentication)) {
		return Hold{}, false
	}
	return hold("", "", location, nil), true
}
