package validate

import (
	_ "embed" // the table of what is not supported
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Tables by field ("VirtualService.http.name") or value: unsupported ones are refused, ineffective ones are accepted
// with a warning.
var (
	//go:embed unsupported.txt
	unsupportedTable string
	//go:embed ineffective.txt
	ineffectiveTable string

	unsupported = parseTable(unsupportedTable)
	ineffective = parseTable(ineffectiveTable)
)

// verdict says why a field or value is refused or has no effect, and what to do.
type verdict struct{ reason, remedy string }

func parseTable(table string) map[string]verdict {
	out := map[string]verdict{}
	for line := range strings.Lines(table) {
		parts := strings.Split(strings.TrimSpace(line), " | ")
		if len(parts) == 3 && !strings.HasPrefix(line, "#") {
			out[parts[0]] = verdict{parts[1], parts[2]}
		}
	}
	return out
}

// supported reports fields and values of a decoded message that are in the two tables. name is the message's path in
// the tables, path its JSON path in the object.
func (c *checker) supported(name, path string, m protoreflect.Message) {
	if r, ok := ineffective[name]; ok {
		c.warn(path, r)
		return
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fieldName, fieldPath := name+"."+f.JSONName(), f.JSONName()
		if path != "" {
			fieldPath = path + "." + fieldPath
		}
		if r, ok := unsupported[fieldName]; ok {
			c.fail(fieldPath, nil, r.reason, r.remedy)
			return true
		}
		if r, ok := ineffective[fieldName]; ok {
			c.warn(fieldPath, r)
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
		row := name + "." + string(value.Name())
		if r, ok := unsupported[row]; ok {
			c.fail(path, string(value.Name()), r.reason, r.remedy)
		}
		if r, ok := ineffective[row]; ok {
			c.warn(path, r)
		}
	}
}
