package whole

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
)

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
	if code != "*" && !finding.Known(code) {
		return Suppression{}, fmt.Errorf("%q suppresses %s, which is no code: see docs/reference/findings.md", text, code)
	}
	return Suppression{code, resource}, nil
}

func (s Suppression) holds(m finding.Finding) bool {
	return m.Named(s.code) && glob(s.resource, m.Resource())
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
func suppressedBy(annotations map[string]string, m finding.Finding) bool {
	return slices.ContainsFunc(strings.Split(annotations[suppressAnnotation], ","), func(code string) bool {
		code = strings.TrimSpace(code)
		return code != "" && m.Named(code)
	})
}
