package analyzers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/services/config-watcher/internal/analyze"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Message is one finding about one object, or about text that is no object.
type Message struct {
	Code     analyze.Code
	Severity analyze.Severity
	// Istio is the code of Istio's message for the same mistake, such as "IST0101"; "" if there is none.
	Istio string
	Key   object.Key
	// Problem is the finding; its Location is the line of the field, empty for an object of an API server.
	object.Problem
	// FromFile is true for an object that stands in a file.
	FromFile bool
}

// File and Line are the place of the message; both are zero for an object of an API server.
func (m Message) File() (file string, line int) {
	at := strings.LastIndexByte(m.Location, ':')
	if at < 0 {
		return m.Location, 0
	}
	if _, err := fmt.Sscanf(m.Location[at+1:], "%d", &line); err != nil {
		return m.Location, 0
	}
	return m.Location[:at], line
}

// Anchor is the place of the code in the reference.
func (m Message) Anchor() string { return "docs/reference/findings.md#" + m.Code.Anchor() }

// Resource names the object as istioctl does: "VirtualService web.shop". It is empty for text that is no object.
func (m Message) Resource() string { return resourceOf(m.Key) }

func resourceOf(k object.Key) string {
	if k.Kind == "" {
		return ""
	}
	return strings.TrimSuffix(k.Kind+" "+k.Name+"."+k.Namespace, ".")
}

// rank orders severities, the worst first.
var rank = map[analyze.Severity]int{analyze.Error: 0, analyze.Warning: 1, analyze.Info: 2}

// AtLeast reports whether a severity is as bad as another, or worse.
func AtLeast(s, threshold analyze.Severity) bool { return rank[s] <= rank[threshold] }

// compare orders messages: the worst first, then by object, place and code.
func compare(a, b Message) int {
	return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), a.Key.Compare(b.Key), cmp.Compare(a.Field, b.Field),
		cmp.Compare(a.Code, b.Code),
		cmp.Compare(a.Location, b.Location), strings.Compare(a.Description(), b.Description()))
}

func sorted(list []Message) []Message {
	slices.SortFunc(list, compare)
	return slices.CompactFunc(list, func(a, b Message) bool { return compare(a, b) == 0 })
}

// Suppression says which messages the user does not want: of a code about an object.
type Suppression struct {
	code string
	// resource is a pattern of Message.Resource, in which "*" stands for any text.
	resource string
}

// ParseSuppression reads "IST0103=Pod web.shop" as istioctl does. The code may be Istio's or Fairlead's, or "*".
func ParseSuppression(text string) (Suppression, error) {
	code, resource, found := strings.Cut(text, "=")
	code, resource = strings.TrimSpace(code), strings.TrimSpace(resource)
	if !found || code == "" || resource == "" {
		return Suppression{}, fmt.Errorf("%q is no suppression: write CODE=KIND NAME.NAMESPACE, as in \"IST0103=Pod *.testing\"", text)
	}
	if code != "*" && !knownCode(code) {
		return Suppression{}, fmt.Errorf("%q suppresses %s, which is no code: see docs/reference/findings.md", text, code)
	}
	return Suppression{code, resource}, nil
}

func (s Suppression) holds(m Message) bool { return m.is(s.code) && glob(s.resource, m.Resource()) }

// is reports whether code names the message: Fairlead's code, Istio's, or "*".
func (m Message) is(code string) bool {
	return code == "*" || strings.EqualFold(code, string(m.Code)) || m.Istio != "" && strings.EqualFold(code, m.Istio)
}

// glob reports whether a pattern in which "*" stands for any text matches.
func glob(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	if !strings.HasPrefix(text, parts[0]) {
		return false
	}
	text = text[len(parts[0]):]
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return strings.HasSuffix(text, last)
}

// suppressAnnotation lists codes of messages that are not told about the object that has it, as in Istio.
const suppressAnnotation = "galley.istio.io/analyze-suppress"

// suppressedBy reports whether the annotation of an object suppresses a message.
func suppressedBy(annotations map[string]string, m Message) bool {
	return slices.ContainsFunc(strings.Split(annotations[suppressAnnotation], ","), func(code string) bool {
		code = strings.TrimSpace(code)
		return code != "" && m.is(code)
	})
}
