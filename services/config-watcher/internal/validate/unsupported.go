package validate

import (
	_ "embed" // the table of what is not supported
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

//go:embed unsupported.txt
var unsupportedTable string

// refusal says why a field or value is refused, and what to do.
type refusal struct{ reason, remedy string }

var unsupported = parseUnsupported(unsupportedTable)

func parseUnsupported(table string) map[string]refusal {
	out := map[string]refusal{}
	for line := range strings.Lines(table) {
		parts := strings.Split(strings.TrimSpace(line), " | ")
		if len(parts) == 3 && !strings.HasPrefix(line, "#") {
			out[parts[0]] = refusal{parts[1], parts[2]}
		}
	}
	return out
}

// supported reports fields and values of a decoded message that the table of unsupported ones has. name is the message's place in that table, path
// its place in the object.
func (c *checker) supported(name, path string, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fieldName, fieldPath := name+"."+f.JSONName(), f.JSONName()
		if path != "" {
			fieldPath = path + "." + fieldPath
		}
		if r, ok := unsupported[fieldName]; ok {
			c.fail(fieldPath, nil, r.reason, r.remedy)
			return true
		}
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
					c.supported(fieldName, field(fieldPath, key.String()), value.Message())
					return true
				})
			}
		case f.IsList():
			for i := range v.List().Len() {
				c.supportedValue(fieldName, index(fieldPath, i), f, v.List().Get(i))
			}
		default:
			c.supportedValue(fieldName, fieldPath, f, v)
		}
		return true
	})
}

func (c *checker) supportedValue(name, path string, f protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case f.Message() != nil:
		c.supported(name, path, v.Message())
	case f.Enum() != nil:
		value := f.Enum().Values().ByNumber(v.Enum())
		if value == nil {
			return
		}
		if r, ok := unsupported[name+"."+string(value.Name())]; ok {
			c.fail(path, string(value.Name()), r.reason, r.remedy)
		}
	}
}
