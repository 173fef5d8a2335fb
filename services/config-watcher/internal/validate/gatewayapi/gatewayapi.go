// Package gatewayapi decodes objects of the Gateway API as an API server does that has its CustomResourceDefinitions:
// it fills in their defaults, and holds an object against their schemas and CEL rules. Files and the store have no API
// server, and the definitions are the only text of most of these rules, so they are evaluated as they stand, by the
// library that API servers evaluate them with (ADR 108). Rules that compare an object with its former version are not
// evaluated: only an API server has it.
//
// Package validate calls Decode. The schemas are in schemas/, from which schema.go makes rules once for each kind that
// is used; generate/ writes them.
package gatewayapi

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

// Decode decodes the object of the Decoder's document, with the defaults of its kind and version, into the Go type of
// the kind. checked is true for an object that an API server has accepted: its definitions may be newer or older than
// those of this package, so they alone have judged it, and fields that this package does not know are left out with a
// warning. It returns false if nothing is left to check.
func Decode(d *decode.Decoder, kind, version string, checked bool, into any) (usable bool) {
	r, err := rulesOf(kind, version)
	if err != nil {
		d.Fail("", nil, "cannot be validated: "+err.Error(), "report this as a defect of Fairlead")
		return false
	}
	tree := r.filled(d.Doc.Tree)
	before := len(d.Problems)
	misshapen := false
	if !checked {
		for _, e := range r.check(tree) {
			d.Fail(path(e), value(e), reason(e), remedy(e, kind))
			misshapen = misshapen || e.Type == field.ErrorTypeTypeInvalid
		}
	}
	if misshapen {
		return false // decoding would report it again
	}
	refused := len(d.Problems) > before
	d.Lenient = checked
	usable = d.BodyOf(kind, tree, into)
	d.Lenient = false
	if usable {
		ineffective(d)
	}
	return usable && !refused
}

// ineffective warns of fields of the experimental channel that nothing here reads.
func ineffective(d *decode.Decoder) {
	const reason, remedy = "it is experimental, and not supported", "remove it"
	spec, _ := d.Doc.Tree["spec"].(map[string]any)
	for _, name := range []string{"defaultScope", "useDefaultGateways"} {
		v, written := spec[name]
		d.WarnIf(written && v != "None", manifest.Field("spec", name), reason, remedy)
	}
	rules, _ := spec["rules"].([]any)
	for at, rule := range manifest.Items("spec.rules", rules) {
		fields, _ := rule.(map[string]any)
		d.WarnIf(fields["sessionPersistence"] != nil, manifest.Field(at, "sessionPersistence"), reason, remedy)
	}
}

// Filled returns the spec of an object with the defaults of its kind and version; nil if it has none.
func Filled(kind, version string, tree map[string]any) any {
	r, err := rulesOf(kind, version)
	if err != nil {
		return nil
	}
	return r.filled(tree)["spec"]
}

// placed are details of errors of which the library tells the place in words alone.
var placed = []*regexp.Regexp{
	regexp.MustCompile(`^"(?P<path>[^"]+)" (?P<rest>must validate .*)$`),
	regexp.MustCompile(`^(?P<rest>Checked value must be .*) in (?P<path>\S+)$`),
}

// split divides such a detail; path is empty for any other.
func split(detail string) (path, rest string) {
	for _, of := range placed {
		if m := of.FindStringSubmatch(detail); m != nil {
			return m[of.SubexpIndex("path")], m[of.SubexpIndex("rest")]
		}
	}
	return "", detail
}

// path is the place of an error as a JSON path; that of the whole object is empty.
func path(e *field.Error) string {
	if at, _ := split(e.Detail); at != "" {
		return at
	}
	if e.Field == "<nil>" {
		return ""
	}
	return e.Field
}

// value is what the user wrote, if it is short enough to be of use.
func value(e *field.Error) any {
	switch v := e.BadValue.(type) {
	case string, int64, float64, bool:
		if at, _ := split(e.Detail); at != "" {
			return nil
		}
		switch e.Type {
		case field.ErrorTypeRequired, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid: // not what the user wrote
		default:
			return v
		}
	}
	return nil
}

func reason(e *field.Error) string {
	switch e.Type {
	case field.ErrorTypeRequired:
		if e.Detail == "" {
			return "missing"
		}
	case field.ErrorTypeNotSupported:
		return "unknown value"
	case field.ErrorTypeDuplicate:
		return "stands in the list before"
	}
	_, detail := split(e.Detail)
	detail = strings.TrimSpace(strings.TrimPrefix(detail, e.Field+" "))
	detail = strings.TrimPrefix(detail, "in body ")
	if is, found := e.BadValue.(string); found && e.Type == field.ErrorTypeTypeInvalid {
		detail = strings.TrimSuffix(detail, ": "+strconv.Quote(is)) + ", found " + is
	}
	return detail
}

func remedy(e *field.Error, kind string) string {
	switch e.Type {
	case field.ErrorTypeNotSupported:
		if _, known, ok := strings.Cut(e.Detail, "supported values: "); ok {
			return "use one of " + strings.ReplaceAll(known, `"`, "")
		}
	case field.ErrorTypeDuplicate:
		return "keep one of them"
	}
	return fmt.Sprintf("see the Gateway API's reference of %s", kind)
}

// Versions lists the versions of a kind that have a schema.
func Versions(kind string) (names []string, err error) {
	all, err := schemasOf(kind)
	for _, v := range all {
		names = append(names, v.names...)
	}
	return names, err
}
