// Package support knows which fields and values of Istio's API Fairlead does not support. Two tables list them by field
// ("VirtualService.http.name") or value: those of unsupported.txt are refused, those of ineffective.txt are accepted
// with a warning.
package support

import (
	_ "embed" // the tables
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
)

var (
	//go:embed unsupported.txt
	unsupportedTable string
	//go:embed ineffective.txt
	ineffectiveTable string

	unsupported = parseTable(unsupportedTable)
	ineffective = parseTable(ineffectiveTable)
)

// row says why a field or value is refused or has no effect, and what to do.
type row struct{ reason, remedy string }

func parseTable(table string) map[string]row {
	out := map[string]row{}
	for line := range strings.Lines(table) {
		parts := strings.Split(strings.TrimSpace(line), " | ")
		if len(parts) == 3 && !strings.HasPrefix(line, "#") {
			out[parts[0]] = row{parts[1], parts[2]}
		}
	}
	return out
}

// Check reports the fields and values of a decoded message that are in the tables. name is the message's path in the
// tables, path its JSON path in the object.
func Check(v *decode.Verdict, name, path string, m protoreflect.Message) {
	if r, ok := ineffective[name]; ok {
		v.Warn(path, r.reason, r.remedy)
		return
	}
	m.Range(func(f protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		row, at := name+"."+f.JSONName(), f.JSONName()
		if path != "" {
			at = path + "." + at
		}
		if r, ok := unsupported[row]; ok {
			v.Fail(at, nil, r.reason, r.remedy)
			return true
		}
		if r, ok := ineffective[row]; ok {
			v.Warn(at, r.reason, r.remedy)
			return true
		}
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				value.Map().Range(func(key protoreflect.MapKey, entry protoreflect.Value) bool {
					Check(v, row, manifest.Field(at, key.String()), entry.Message())
					return true
				})
			}
		case f.IsList():
			for i := range value.List().Len() {
				checkValue(v, row, manifest.Index(at, i), f, value.List().Get(i))
			}
		default:
			checkValue(v, row, at, f, value)
		}
		return true
	})
}

func checkValue(v *decode.Verdict, name, path string, f protoreflect.FieldDescriptor, value protoreflect.Value) {
	if f.Message() != nil {
		Check(v, name, path, value.Message())
		return
	}
	if f.Enum() == nil {
		return
	}
	known := f.Enum().Values().ByNumber(value.Enum())
	if known == nil {
		return
	}
	row := name + "." + string(known.Name())
	if r, ok := unsupported[row]; ok {
		v.Fail(path, string(known.Name()), r.reason, r.remedy)
	}
	if r, ok := ineffective[row]; ok {
		v.Warn(path, r.reason, r.remedy)
	}
}
