package manifest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

const mib = 1 << 20

// fill repeats a piece between a beginning and an end until there are n bytes.
func fill(begin, piece, end string, n int) string {
	return begin + strings.Repeat(piece, (n-len(begin)-len(end))/len(piece)) + end
}

// TestHostileDocuments: no document allocates more than the case allows, whether it is read or refused. All allocations
// count, so the heap grows by less.
func TestHostileDocuments(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want string // of the problem; "" if it is read
		most uint64 // MiB that may be allocated
	}{
		"a long text aliased": {fill("a: &a "+strings.Repeat("x", mib-8000)+"\nb: [", "*a,", "]", mib), "f:2: with its aliases written out",
			10},
		"a short text aliased": {fill("a: &a "+strings.Repeat("x", 1400)+"\nb: [", "*a,", "]", mib), "f:1: document has ", 10},
		"short maps aliased": {"a: &a [" + strings.Repeat("{b: 1},", 1000) + "]\nb: [" + strings.Repeat("*a,", 390) + "]",
			"f:2: with its aliases", 10},
		"numbers":                {fill("a: [", "1,", "1]", MaxDocumentBytes), "values or more", 10},
		"pairs":                  {fill("a: [", "a:,", "1]", MaxDocumentBytes), "values or more", 10},
		"members of two bytes":   {fill("a: {", "a,", "a}", MaxDocumentBytes), "values or more", 10},
		"as many members":        {fill("a: {", "a,", "a}", 260_000), `key "a" already set`, 140},
		"as many maps":           {fill("a:\n", "- a:\n", "", 980_000), "", 400},
		"as many maps in braces": {fill("a: [", "{a: },", "1]", 260_000), "", 140},
		"as many lists":          {fill("a: [", strings.Repeat("[", 190)+strings.Repeat("]", 190)+",", "1]", 240_000), "", 140},
		"one number":             {fill("a: ", "9", "", MaxDocumentBytes), "", 100},
		"one text":               {fill("a: \"", "<", "\"", MaxDocumentBytes), "", 250},
		"blank lines":            {fill("a: b", "\n", "", 8*mib), "document has", 10},
		"merges and one key twice": {func() string {
			var b strings.Builder
			b.WriteString("a: {<<: {}, k0: 1, ")
			for i := range 50_000 {
				fmt.Fprintf(&b, "k%d: 1,", i)
			}
			return b.String() + "}"
		}(), `key "k0" already set`, 140},
	} {
		t.Run(name, func(t *testing.T) {
			text := []byte(tc.text)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			docs, problems := Parse("f", text)
			runtime.ReadMemStats(&after)
			if got := (after.TotalAlloc - before.TotalAlloc) / mib; got > tc.most {
				t.Errorf("%d MiB were allocated for %d bytes, want at most %d", got, len(text), tc.most)
			}
			if tc.want == "" && (len(docs) != 1 || len(problems) > 0) || !strings.Contains(problems.Error(), tc.want) {
				t.Errorf("%d documents, problems %.300s; want %q", len(docs), problems.Error(), tc.want)
			}
		})
	}
}

// TestManyBrokenDocuments: MaxDocuments bounds the problems of a file too.
func TestManyBrokenDocuments(t *testing.T) {
	if _, problems := Parse("f", []byte(strings.Repeat("---\nx\n", MaxDocuments+10))); len(problems) != MaxDocuments+1 {
		t.Errorf("%d problems", len(problems))
	}
}

// TestLongPaths: a name of a megabyte is not copied for each of the many members below it.
func TestLongPaths(t *testing.T) {
	var b strings.Builder
	b.WriteString("a: {? " + strings.Repeat("x", mib) + " : {")
	for i := range 100_000 {
		fmt.Fprintf(&b, "k%d: 1,", i)
	}
	docs, problems := Parse("f", []byte(b.String()+"}}\n\nb: 1\n"))
	if len(docs) != 1 {
		t.Fatal(problems)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if got := docs[0].FieldLocation("b"); got != "f:3" {
		t.Error(got)
	}
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / mib; got > 250 {
		t.Errorf("%d MiB were allocated to find a line", got)
	}
	path := ""
	for range 1000 {
		path = Field(path, strings.Repeat("x", 2*maxPath))
	}
	if len(path) > 4*maxPath {
		t.Errorf("a path of %d bytes", len(path))
	}
}

// TestEachKeepsOneDocument: Each keeps no document after its callback has returned.
func TestEachKeepsOneDocument(t *testing.T) {
	doc := "---\n" + fill("a:\n", "- b: c\n", "", 100_000)
	const documents = 40
	content := []byte(strings.Repeat(doc, documents))
	count, live := 0, runtime.MemStats{}
	held := func() int64 {
		runtime.GC()
		runtime.ReadMemStats(&live)
		return int64(live.HeapAlloc)
	}
	during := int64(0)
	problems := Each("f", content, func(*Document) {
		if count++; count == documents {
			during = held()
		}
	})
	if more := during - held(); more > 40*mib || count != documents || len(problems) > 0 {
		t.Errorf("%d MiB were held, %d documents, problems %v", more/mib, count, problems)
	}
}
