package bugreport

import "bytes"

const (
	// minLearned is the shortest value that is looked for in other texts: a shorter one is too common.
	minLearned = 6
	// maxLearned and maxLearnedBytes bound the values that are kept.
	maxLearned      = 1 << 16
	maxLearnedBytes = 64 << 20
)

// learned are secret values that are looked for in texts. A text is searched once for all of them: what may begin a
// value is told by its first bytes. The zero value has none.
type learned struct {
	// known has every value, and bytes their length.
	known map[string]bool
	bytes int
	// begins has the values by their first minLearned bytes, and may has a bit for each two bytes that one begins with:
	// most positions of a text are passed over by it.
	begins map[[minLearned]byte][]string
	may    [1 << 16 / 64]uint64
}

// add adds a value that is long enough, unless there are too many.
func (l *learned) add(v string) {
	if len(v) < minLearned || l.known[v] || len(l.known) >= maxLearned || l.bytes+len(v) > maxLearnedBytes {
		return
	}
	if l.known == nil {
		l.known, l.begins = map[string]bool{}, map[[minLearned]byte][]string{}
	}
	l.known[v] = true
	l.bytes += len(v)
	begin := [minLearned]byte([]byte(v[:minLearned]))
	l.begins[begin] = append(l.begins[begin], v)
	two := uint16(v[0])<<8 | uint16(v[1])
	l.may[two/64] |= 1 << (two % 64)
}

// replace replaces what belongs to a value by Redacted, values that overlap by one. A text without any is returned
// itself.
func (l *learned) replace(text []byte) []byte {
	if len(l.known) == 0 {
		return text
	}
	var out []byte
	kept, begin, end := 0, 0, 0 // what is before kept is in out; text[begin:end] is to be replaced
	for i := 0; i+minLearned <= len(text); i++ {
		n := l.longest(text[i:])
		if n == 0 {
			continue
		}
		if i >= end && end > 0 {
			out = append(append(out, text[kept:begin]...), Redacted...)
			kept = end
		}
		if i >= end {
			begin = i
		}
		end = max(end, i+n)
	}
	if end == 0 {
		return text
	}
	out = append(append(out, text[kept:begin]...), Redacted...)
	return append(out, text[end:]...)
}

// longest is the length of the longest value that a text begins with, 0 if it begins with none. The text has minLearned
// bytes at least.
func (l *learned) longest(text []byte) int {
	two := uint16(text[0])<<8 | uint16(text[1])
	if l.may[two/64]&(1<<(two%64)) == 0 {
		return 0
	}
	n := 0
	for _, v := range l.begins[[minLearned]byte(text[:minLearned])] {
		if len(v) > n && len(v) <= len(text) && bytes.Equal(text[:len(v)], []byte(v)) {
			n = len(v)
		}
	}
	return n
}
