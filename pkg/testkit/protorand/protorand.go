// Package protorand makes random protobuf messages that are often valid: Table.Fill draws which fields are set, and
// takes their values from a table by field name. Istio is the table for Istio's objects as users write them, Normalised
// the one for objects as xds-server receives them. Fuzz tests and random histories use it.
package protorand

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Source draws a number from 0 to n-1; n is at least 1. Fill takes all randomness from it, so its caller can repeat and
// shrink a case.
type Source func(n int) int

// Bytes returns a Source that draws from raw, which a fuzzer may choose, and after its end from a generator that raw
// seeds.
func Bytes(raw []byte) Source {
	h := fnv.New64a()
	_, _ = h.Write(raw)                         // writes to a hash do not fail
	rest := rand.New(rand.NewPCG(h.Sum64(), 0)) //nolint:gosec // the same each time
	return func(n int) int {
		if len(raw) == 0 {
			return rest.IntN(n)
		}
		first := int(raw[0])
		raw = raw[1:]
		return first % n
	}
}

// Table says which values fields get.
type Table struct {
	// Values are texts for a field, by "Message.field" or "field" (protobuf's names). A field of a message's type takes
	// them as JSON.
	Values map[string][]string
	// Numbers are numbers for a field, likewise.
	Numbers map[string][]float64
	// Always are fields that are always set, "Message.field"; Never those that never are.
	Always, Never map[string]bool
	// Seldom are fields that are set once in a dozen times, because they exclude others; "Message" means all of its
	// fields.
	Seldom map[string]bool
	// Deep bounds the nesting of messages; 0 means 8.
	Deep int
	// Odd says that one value in so many is odd; 0 means 40.
	Odd int
}

// Fill sets fields of a message.
func (t *Table) Fill(from Source, m proto.Message) { t.message(from, m.ProtoReflect(), 0) }

const (
	usualDepth = 8
	seldom     = 12
)

func (t *Table) message(from Source, m protoreflect.Message, depth int) {
	deep := t.Deep
	if deep == 0 {
		deep = usualDepth
	}
	fields := m.Descriptor().Fields()
	chosen := map[protoreflect.Name]protoreflect.Name{}
	for i := range m.Descriptor().Oneofs().Len() {
		one := m.Descriptor().Oneofs().Get(i)
		if !one.IsSynthetic() {
			chosen[one.Name()] = one.Fields().Get(from(one.Fields().Len())).Name()
		}
	}
	// Deeper messages have fewer fields, so that an object's size does not multiply with its depth.
	oneIn := min(2+depth, 4)
	for i := range fields.Len() {
		f := fields.Get(i)
		key := name(f)
		if t.Never[key] || depth >= deep && f.Message() != nil && !t.Always[key] {
			continue
		}
		if t.Seldom[key] && from(seldom) != 0 {
			continue
		}
		if t.Seldom[string(m.Descriptor().Name())] && !t.Always[key] && from(seldom) != 0 {
			continue
		}
		if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() {
			if chosen[one.Name()] != f.Name() {
				continue
			}
		} else if !t.Always[key] && from(oneIn) != 0 {
			continue
		}
		t.field(from, m, f, depth)
	}
}

// name is a field's key in tables.
func name(f protoreflect.FieldDescriptor) string {
	return string(f.ContainingMessage().Name()) + "." + string(f.Name())
}

func lookup[V any](table map[string][]V, f protoreflect.FieldDescriptor) []V {
	if v, ok := table[name(f)]; ok {
		return v
	}
	return table[string(f.Name())]
}

func (t *Table) field(from Source, m protoreflect.Message, f protoreflect.FieldDescriptor, depth int) {
	switch {
	case f.IsMap():
		held := m.Mutable(f).Map()
		for range 1 + from(2) {
			key := t.scalar(from, f, f.MapKey()).MapKey()
			value := f.MapValue()
			if value.Message() == nil {
				held.Set(key, t.scalar(from, value, value))
				continue
			}
			into := held.NewValue()
			t.fill(from, into.Message(), f, depth)
			held.Set(key, into)
		}
	case f.IsList():
		list := m.Mutable(f).List()
		for range 1 + from(2) {
			if f.Message() == nil {
				list.Append(t.scalar(from, f, f))
				continue
			}
			into := list.NewElement()
			t.fill(from, into.Message(), f, depth)
			list.Append(into)
		}
	case f.Message() != nil:
		t.fill(from, m.Mutable(f).Message(), f, depth)
	default:
		m.Set(f, t.scalar(from, f, f))
	}
}

// fill fills the message that a field holds.
func (t *Table) fill(from Source, m protoreflect.Message, f protoreflect.FieldDescriptor, depth int) {
	if values := lookup(t.Values, f); len(values) > 0 {
		text := values[from(len(values))]
		if protojson.Unmarshal([]byte(text), m.Interface()) == nil {
			return
		}
	}
	full := string(m.Descriptor().FullName())
	switch {
	case full == "google.protobuf.Duration":
		seconds := []int64{0, 0, 1, 5, 60, 3600}[from(6)]
		m.Set(m.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOfInt64(seconds))
		if seconds == 0 {
			m.Set(m.Descriptor().Fields().ByName("nanos"), protoreflect.ValueOfInt32([]int32{1_000_000, 25_000_000, 500_000_000}[from(3)]))
		}
	case strings.HasSuffix(full, "Value") && strings.HasPrefix(full, "google.protobuf."):
		if value := m.Descriptor().Fields().ByName("value"); value != nil {
			m.Set(value, t.scalar(from, f, value))
		}
	case strings.HasPrefix(full, "google.protobuf."):
	default:
		t.message(from, m, depth+1)
	}
}

// scalar returns a value for a field of kind's type, from the table's entries for f.
func (t *Table) scalar(from Source, f, kind protoreflect.FieldDescriptor) protoreflect.Value {
	switch kind.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(from(2) == 0)
	case protoreflect.EnumKind:
		values := kind.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(from(values.Len())).Number())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(t.text(from, f))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(t.text(from, f)))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(t.number(from, f)))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(t.number(from, f))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(t.number(from, f)))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(math.Abs(t.number(from, f))))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(math.Abs(t.number(from, f))))
	default:
		return protoreflect.ValueOfInt64(int64(t.number(from, f)))
	}
}

// odd are texts that code may not expect.
var odd = []string{
	"", " ", "*", "%", "%REQ(x)%", "a b", "A", "é", "\x00", "a\r\nb: c", "../..", "//", "(", "[", "\\", "\"", "'", "{}", ".", "..", "a..b",
	"-", "~",
	strings.Repeat("a", 300), strings.Repeat("(", 200) + strings.Repeat(")", 200), "(a|b)*c{1,900}", "xn--a", "0.0.0.0", "::", "127.0.0.1",
	"%2F", "$(x)", "${x}",
}

// usualOdd is the default of Table.Odd.
const usualOdd = 40

func (t *Table) isOdd(from Source) bool {
	rare := t.Odd
	if rare == 0 {
		rare = usualOdd
	}
	return from(rare) == rare-1
}

func (t *Table) text(from Source, f protoreflect.FieldDescriptor) string {
	if t.isOdd(from) {
		return odd[from(len(odd))]
	}
	if values := lookup(t.Values, f); len(values) > 0 {
		return values[from(len(values))]
	}
	return []string{"a", "b", "x-a"}[from(3)]
}

func (t *Table) number(from Source, f protoreflect.FieldDescriptor) float64 {
	if t.isOdd(from) {
		return []float64{-1, 0, math.MaxInt32, math.MinInt32, 65536, 1e9}[from(6)]
	}
	if values := lookup(t.Numbers, f); len(values) > 0 {
		return values[from(len(values))]
	}
	return []float64{0, 1, 2, 10, 100}[from(5)]
}
