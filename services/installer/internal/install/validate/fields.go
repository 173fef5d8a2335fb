package validate

import (
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/services/installer/internal/install/tree"
)

var (
	specType      = reflect.TypeFor[Spec]()
	componentType = reflect.TypeFor[Component]()
	unmarshaler   = reflect.TypeFor[json.Unmarshaler]()
	rawType       = reflect.TypeFor[json.RawMessage]()
)

// structFields returns the types of a struct's fields by their JSON names, those of embedded structs included.
func structFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && (strings.Contains(options, "inline") || f.Anonymous):
			maps.Copy(fields, structFields(f.Type))
		case name != "" && name != "-":
			fields[name] = f.Type
		}
	}
	return fields
}

func names(fields map[string]reflect.Type) []string { return slices.Sorted(maps.Keys(fields)) }

// fields checks a value against a Go type, as encoding/json would decode it, and names every field that does not fit.
func (c *checker) fields(keys []string, v any, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v == nil || t == rawType || t.Kind() == reflect.Interface {
		return
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		c.decode(keys, v, t)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		table, ok := v.(tree.Map)
		if !ok {
			c.wrong(keys, v, "a mapping")
			return
		}
		known := structFields(t)
		for _, k := range tree.Keys(table) {
			if field, ok := known[k]; ok {
				c.fields(below(keys, k), table[k], field)
			} else {
				c.unknown(below(keys, k), names(known))
			}
		}
	case reflect.Map:
		table, ok := v.(tree.Map)
		if !ok {
			c.wrong(keys, v, "a mapping")
			return
		}
		for _, k := range tree.Keys(table) {
			c.fields(below(keys, k), table[k], t.Elem())
		}
	case reflect.Slice:
		c.list(keys, v, t)
	default:
		c.scalar(keys, v, t)
	}
}

func (c *checker) list(keys []string, v any, t reflect.Type) {
	if t.Elem().Kind() == reflect.Uint8 {
		c.decode(keys, v, t)
		return
	}
	list, ok := v.([]any)
	if !ok {
		c.wrong(keys, v, "a list")
		return
	}
	for i, item := range list {
		c.fields(below(keys, strconv.Itoa(i)), item, t.Elem())
	}
}

// decode lets a type that decodes itself judge a value: a quantity, a number or a percentage.
func (c *checker) decode(keys []string, v any, t reflect.Type) {
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, reflect.New(t).Interface())
	}
	if err != nil {
		c.refuse(keys, "%s is no %s: %v", short(string(text)), words(t), err)
	}
}

func words(t reflect.Type) string {
	switch t.Name() {
	case "Quantity":
		return "quantity, such as 500m or 128Mi"
	case "IntOrString":
		return "number or percentage"
	}
	return t.Name()
}

func (c *checker) scalar(keys []string, v any, t reflect.Type) {
	switch t.Kind() {
	case reflect.String:
		if _, ok := v.(string); !ok {
			c.wrong(keys, v, "a string; put it between quotes")
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			c.wrong(keys, v, "true or false")
		}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		c.whole(keys, v, t.Kind() == reflect.Uint32 || t.Kind() == reflect.Uint64, t.Bits())
	default:
		if _, ok := v.(float64); !ok {
			c.wrong(keys, v, "a number")
		}
	}
}

// whole checks for a whole number of a size.
func (c *checker) whole(keys []string, v any, unsigned bool, bits int) {
	n, ok := v.(float64)
	least, most := -math.Ldexp(1, bits-1), math.Ldexp(1, bits-1)-1
	want := "a whole number"
	if unsigned {
		least, most, want = 0, math.Ldexp(1, bits)-1, "a whole number that is not negative"
	}
	if !ok || n != math.Trunc(n) || n < least || n > most {
		c.wrong(keys, v, want)
	}
}
