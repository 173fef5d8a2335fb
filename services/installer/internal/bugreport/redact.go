package bugreport

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/yaml"
)

// Redacted takes the place of a secret.
const Redacted = "[redacted]"

// Patterns of secrets in any text.
var (
	// privateKey is a PEM block, with line ends or with "\n" as in JSON; one that is cut off counts to the end of the
	// text.
	privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`)
	token      = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`)
	// authorization is the header in a log, in JSON, or in the words of curl.
	authorization = regexp.MustCompile(
		`(?i)((?:proxy-)?authorization["']?\s*[:=]\s*["'\[]*)((?:bearer|basic|digest|negotiate|token)\s+)?[^\s"',\]]+`)
	bearer = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`)
	// assigned is a name of something secret with its value: password=x, "client_secret": "x", --token x.
	assigned = regexp.MustCompile(
		`(?i)([A-Za-z0-9_.-]*(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|private[_-]?key|access[_-]?key|credentials?)["']?\s*(?::|=)\s*)("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"',{}\[\]&]+)`)
	// credentialURL is user information in a URL.
	credentialURL = regexp.MustCompile(`(\b[a-z][a-z0-9+.-]*://[^/\s:@"']*:)[^/\s@"']+@`)
)

// secretName says of the name of a field or variable that its value is secret.
var secretName = regexp.MustCompile(
	`(?i)(passw(or)?d|passphrase|secret|token|api[_-]?key|private[_-]?key|access[_-]?key|credential|session_ticket_keys|authorization|cookie)`)

// publicName is a name that secretName takes for secret and that only says where a secret is, or for how long.
var publicName = regexp.MustCompile(
	`(?i)(name|names|file|path|dir|mode|type|ttl|audience|audiences|seconds|duration|count|issuer|policy|url|uri|ref|refs|version|automount\w*|secrets|configs?|source)$`)

// passwordName is a name whose value is secret even if it is a number: a PIN is, the tokens of a rate limit are not.
var passwordName = regexp.MustCompile(`(?i)(passw(or)?d|passphrase|secret|api[_-]?key|access[_-]?key|credential)`)

// listName is a name of a list whose texts are secret themselves; those of cookies and headers are names.
var listName = regexp.MustCompile(
	`(?i)(passw(or)?d|passphrase|token|api[_-]?key|private[_-]?key|access[_-]?key|credential|session_ticket_keys)`)

// isSecret tells whether the value of a field or variable is secret.
func isSecret(name string) bool {
	return secretName.MatchString(name) && !publicName.MatchString(name)
}

// Redactor takes secrets out of texts: by their form, by the names of their fields, and by their values, which it
// learns from structured texts. What was redacted in one text is looked for in all later ones, base64 of it too. It is
// safe for concurrent use.
type Redactor struct {
	mu      sync.RWMutex
	learned learned
}

// Learn makes the redactor look for a secret value in later texts.
func (r *Redactor) Learn(values ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range values {
		if v = strings.TrimSpace(v); v != Redacted {
			r.learned.add(v)
		}
	}
}

// Text redacts a text of any kind.
func (r *Redactor) Text(text []byte) []byte { return r.text(text, 3) }

// text is Text; depth bounds how often base64 within base64 is decoded.
func (r *Redactor) text(text []byte, depth int) []byte {
	text = r.values(text)
	if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		text = privateKey.ReplaceAll(text, []byte(Redacted))
	}
	text = byLine(text)
	if depth == 0 {
		return text
	}
	return eachEncoded(text, func(found []byte) []byte {
		for _, plain := range decodings(found) {
			if !bytes.Equal(r.text(plain, depth-1), plain) {
				return []byte(Redacted)
			}
		}
		return found
	})
}

// hints are what a line contains, in lower case, that one of the patterns below matches: most lines have none, and the
// patterns are slow.
var hints = [][]byte{
	[]byte("passw"), []byte("passphrase"), []byte("secret"), []byte("token"), []byte("key"), []byte("credential"), []byte("authorization"),
	[]byte("bearer"),
	[]byte("basic"), []byte("eyj"), []byte("://"),
}

// byLine replaces what has its form within one line.
func byLine(text []byte) []byte {
	var out []byte
	kept := 0 // what is before it is in out
	for begin := 0; begin < len(text); {
		end := len(text)
		if i := bytes.IndexByte(text[begin:], '\n'); i >= 0 {
			end = begin + i + 1
		}
		line := text[begin:end]
		if lower := bytes.ToLower(line); slices.ContainsFunc(hints, func(h []byte) bool { return bytes.Contains(lower, h) }) {
			if changed := inLine(line); !bytes.Equal(changed, line) {
				out = append(append(out, text[kept:begin]...), changed...)
				kept = end
			}
		}
		begin = end
	}
	if kept == 0 {
		return text
	}
	return append(out, text[kept:]...)
}

func inLine(line []byte) []byte {
	line = authorization.ReplaceAll(line, []byte("${1}"+Redacted))
	line = bearer.ReplaceAll(line, []byte("${1} "+Redacted))
	line = token.ReplaceAll(line, []byte(Redacted))
	line = credentialURL.ReplaceAll(line, []byte("${1}"+Redacted+"@"))
	return assigned.ReplaceAllFunc(line, func(found []byte) []byte {
		parts := assigned.FindSubmatch(found)
		name := strings.TrimRight(string(parts[1]), " \t:='\"")
		value := strings.Trim(string(parts[2]), `"'`)
		if !isSecret(name) || harmless(value) {
			return found
		}
		quote := ""
		if q := parts[2][0]; q == '"' || q == '\'' {
			quote = string(q)
		}
		return []byte(string(parts[1]) + quote + Redacted + quote)
	})
}

// isBase64 are the characters of both alphabets.
var isBase64 = func() (table [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_") {
		table[c] = true
	}
	return table
}()

const (
	// minEncoded is the shortest run of characters that is decoded, and minLine the shortest line that is joined with
	// the next one.
	minEncoded = 16
	minLine    = 40
)

// eachEncoded replaces runs of base64: those of several lines too, as the program base64 writes them and JSON shows
// them.
func eachEncoded(text []byte, replace func([]byte) []byte) []byte {
	var out []byte
	kept := 0
	for i := 0; i < len(text); {
		if !isBase64[text[i]] {
			i++
			continue
		}
		end := run(text, i)
		for line := end - i; line >= minLine; {
			next := gap(text, end)
			if next == end || next == len(text) || !isBase64[text[next]] {
				break
			}
			line = run(text, next) - next
			end = next + line
		}
		if found := text[i:end]; len(found) >= minEncoded {
			if changed := replace(found); !bytes.Equal(changed, found) {
				out = append(append(out, text[kept:i]...), changed...)
				kept = end
			}
		}
		i = end
	}
	if kept == 0 {
		return text
	}
	return append(out, text[kept:]...)
}

// run is the end of the characters of base64 from i on.
func run(text []byte, i int) int {
	for i < len(text) && isBase64[text[i]] {
		i++
	}
	return i
}

// gap is the end of what divides two lines: blanks, and line ends as JSON writes them.
func gap(text []byte, i int) int {
	for i < len(text) {
		switch {
		case text[i] == ' ' || text[i] == '\n' || text[i] == '\r' || text[i] == '\t':
			i++
		case text[i] == '\\' && i+1 < len(text) && (text[i+1] == 'n' || text[i+1] == 'r'):
			i += 2
		default:
			return i
		}
	}
	return i
}

// harmless values say that there is none, or how something is set.
func harmless(value string) bool {
	switch strings.ToLower(value) {
	case "", "true", "false", "null", "nil", "none", "{}", "[]", "{", "[", "|", ">", Redacted:
		return true
	}
	return strings.HasPrefix(value, "/") || strings.HasPrefix(value, "[redacted")
}

// values replaces the values that were learned.
func (r *Redactor) values(text []byte) []byte {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.learned.replace(text)
}

// ungapped makes one line of the standard alphabet.
var ungapped = strings.NewReplacer("-", "+", "_", "/", "\\n", "", "\\r", "", "\n", "", "\r", "", " ", "", "\t", "")

// decodings decodes base64 of any alphabet, if it is of a text: the padding may be missing, and the run of characters
// may begin with others that are no part of it.
func decodings(run []byte) (plain [][]byte) {
	text := ungapped.Replace(string(run))
	for skip := range 4 {
		if len(text) <= skip+8 {
			break
		}
		part := text[skip:]
		part = part[:len(part)-len(part)%4+map[int]int{0: 0, 1: 0, 2: 2, 3: 3}[len(part)%4]]
		b, err := base64.RawStdEncoding.DecodeString(part)
		if err == nil && printable(b) {
			plain = append(plain, b)
		}
	}
	return plain
}

// printable tells whether most of a text is readable: only such texts are searched.
func printable(b []byte) bool {
	n := 0
	for _, c := range b {
		if c >= 0x20 && c < 0x7f || c == '\n' || c == '\r' || c == '\t' {
			n++
		}
	}
	return n*10 >= len(b)*9
}

// lastApplied is the annotation in which kubectl keeps a copy of an object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// knownAnnotations are the domains of annotations that the mesh, Kubernetes and their tools write or read. Others may
// say anything.
var knownAnnotations = regexp.MustCompile(
	`^([a-z0-9-]+\.)*(istio\.io|fairlead\.dev|kubernetes\.io|k8s\.io|k8s\.v1\.cni\.cncf\.io|helm\.sh|prometheus\.io)/`)

// foreignAnnotations redacts the values of annotations that are nobody's that is known here. Their names stay.
func foreignAnnotations(annotations map[string]any) {
	for name := range annotations {
		if !knownAnnotations.MatchString(name) {
			annotations[name] = Redacted
		}
	}
}

// Tree redacts a tree of JSON in place, learns what it redacts, and returns it.
func (r *Redactor) Tree(v any) any { return r.tree(v) }

func (r *Redactor) tree(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if v["kind"] == "Secret" && v["apiVersion"] == "v1" {
			r.secret(v)
		}
		delete(v, "managedFields")
		delete(v, lastApplied)
		if annotations, ok := v["annotations"].(map[string]any); ok {
			foreignAnnotations(annotations)
		}
		for _, field := range []string{"name", "key"} { // of an environment variable, or a header
			name, _ := v[field].(string)
			if value, ok := v["value"].(string); ok && isSecret(name) && !harmless(value) {
				r.Learn(value)
				v["value"] = Redacted
			}
		}
		for k, value := range v {
			text, isText := value.(string)
			switch {
			case !isSecret(k):
				v[k] = r.tree(value)
			case isText && !harmless(text):
				r.Learn(text)
				v[k] = Redacted
			case isText:
			case isNumber(value) && passwordName.MatchString(k):
				v[k] = Redacted
			case isList(value) && listName.MatchString(k):
				v[k] = r.each(value.([]any))
			default:
				v[k] = r.under(value)
			}
		}
		return v
	case []any:
		for i := range v {
			v[i] = r.tree(v[i])
		}
	case string:
		return string(r.Text([]byte(v)))
	}
	return v
}

// under redacts the texts below a field of a secret name that are named as content: Envoy writes
// private_key: {inline_string: ...}.
func (r *Redactor) under(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, value := range v {
			text, isText := value.(string)
			switch {
			case isText && (strings.HasPrefix(k, "inline_") || isSecret(k)) && !harmless(text):
				r.Learn(text)
				v[k] = Redacted
			case isText && (k == "value" || k == "data"):
				v[k] = Redacted
			default:
				v[k] = r.under(value)
			}
		}
		return v
	case []any:
		for i := range v {
			v[i] = r.under(v[i])
		}
		return v
	}
	return r.tree(v)
}

// each redacts the texts of a list whose name says that they are secret.
func (r *Redactor) each(list []any) []any {
	for i, value := range list {
		if text, ok := value.(string); ok && !harmless(text) {
			r.Learn(text)
			list[i] = Redacted
		} else {
			list[i] = r.under(value)
		}
	}
	return list
}

func isList(v any) bool {
	_, ok := v.([]any)
	return ok
}

// isNumber tells whether a value is a number, of JSON or of YAML.
func isNumber(v any) bool {
	switch v.(type) {
	case json.Number, float64, int64, int:
		return true
	}
	return false
}

// secret removes the values of a Secret; the names of its entries stay.
func (r *Redactor) secret(v map[string]any) {
	for _, field := range []string{"data", "stringData"} {
		entries, ok := v[field].(map[string]any)
		if !ok {
			delete(v, field)
			continue
		}
		for name, value := range entries {
			if text, ok := value.(string); ok {
				r.Learn(text)
				if plain, err := base64.StdEncoding.DecodeString(text); err == nil && field == "data" {
					r.Learn(string(plain))
				}
			}
			entries[name] = Redacted
		}
	}
}

// JSON redacts a text of JSON by its structure; a text that is none is redacted as any text.
func (r *Redactor) JSON(text []byte) []byte {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return r.Text(text)
	}
	out, err := json.MarshalIndent(r.tree(tree), "", "  ")
	if err != nil {
		return r.Text(text)
	}
	return out
}

// YAML redacts a document of YAML as JSON does.
func (r *Redactor) YAML(text []byte) []byte {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return r.Text(text)
	}
	out, err := yaml.Marshal(r.tree(tree))
	if err != nil {
		return r.Text(text)
	}
	return out
}
