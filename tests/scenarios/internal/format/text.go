package format

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
)

var variable = regexp.MustCompile(`\$\{([a-zA-Z0-9]+):([^}]*)\}`)

// Values says what ${kind:name} stands for.
type Values struct {
	Certificates map[string]*Material
	// IP is a workload's address, VIP a Service's (by SERVICE.NAMESPACE), Identity a workload's SPIFFE URI, Files where
	// its files are.
	IP, VIP, Identity, Files func(name string) (string, error)
	// Keys has the scenario's tokens and the keys that sign them; nil if there are none.
	Keys Keys
}

// Keys are tokens, and what is known of the keys that sign them. Steps may change both.
type Keys interface {
	// Token is a token by name; NAME.before is the one before the last change of its key.
	Token(name string) (string, error)
	// Set is the key set of a key as JSON on one line.
	Set(key string) (string, error)
	// URI is where the set is served over HTTP or HTTPS, and Issuer where a discovery document leads to it.
	URI(key string, tls bool) (string, error)
	Issuer(key string) (string, error)
}

var (
	errVariable = errors.New("use ip, vip, identity, files, jwt, jwks, jwksUri, jwksHttpsUri, jwksIssuer, cert, key, chain or crl, the " +
		"last four with 64 after it for base64")
	errNoKeys = errors.New("there are no tokens and keys here")
	// errLater is of what a step may change: it is replaced when its step comes.
	errLater = errors.New("not yet")
)

// ofKeys is what stands for a variable of tokens and keys; ok is false if it is none.
func (v *Values) ofKeys(kind, name string) (text string, ok bool, err error) {
	k := v.Keys
	find := map[string]func() (string, error){
		"jwt": func() (string, error) { return k.Token(name) }, "jwks": func() (string, error) { return k.Set(name) },
		"jwksUri": func() (string, error) { return k.URI(name, false) }, "jwksHttpsUri": func() (string, error) { return k.URI(name, true) },
		"jwksIssuer": func() (string, error) { return k.Issuer(name) },
	}[kind]
	switch {
	case find == nil:
		return "", false, nil
	case k == nil:
		return "", true, errNoKeys
	}
	text, err = find()
	return text, true, err
}

func (v *Values) value(kind, name string) (string, error) {
	switch kind {
	case "ip":
		return v.IP(name)
	case "vip":
		return v.VIP(name)
	case "identity":
		return v.Identity(name)
	case "files":
		return v.Files(name)
	}
	plain, coded := strings.CutSuffix(kind, "64")
	m := v.Certificates[name]
	var text []byte
	var err error
	switch {
	case plain != "cert" && plain != "key" && plain != "chain" && plain != "crl":
		return "", errVariable
	case m == nil:
		return "", fmt.Errorf("there is no certificate %q", name)
	case plain == "cert":
		text = m.CertPEM
	case plain == "key":
		text = m.KeyPEM
	case plain == "crl":
		text, err = m.CRLPEM()
	default:
		text = m.ChainPEM
	}
	if coded {
		return base64.StdEncoding.EncodeToString(text), err
	}
	return string(text), err
}

// Text replaces the variables of a text. What has several lines, as PEM has, is written as the place in the YAML
// demands: indented like the variable where it stands alone on its line, with \n between double quotes, else in double
// quotes of its own. JSON, as a key set is, is quoted too.
func (v *Values) Text(text string) (string, error) {
	return v.replace(text, v.any, inYAML)
}

// File replaces the variables of a file's content.
func (v *Values) File(text string) (string, error) {
	return v.replace(text, v.any, asIs)
}

func asIs(_, value string) string { return value }

// any is what stands for any variable, early for those that do not change while a scenario runs, and late for the rest.
func (v *Values) any(kind, name string) (string, error) {
	if text, ok, err := v.ofKeys(kind, name); ok {
		return text, err
	}
	return v.value(kind, name)
}

func (v *Values) early(kind, name string) (string, error) {
	if _, ok, _ := (&Values{}).ofKeys(kind, name); ok {
		return "", errLater
	}
	return v.value(kind, name)
}

func (v *Values) late(kind, name string) (string, error) {
	if text, ok, err := v.ofKeys(kind, name); ok {
		return text, err
	}
	return "", errLater
}

// inYAML writes a value as the text of YAML before it demands. An IPv6 address that begins the authority of a URL gets
// its brackets.
func inYAML(before, value string) string {
	if ip, err := netip.ParseAddr(value); err == nil && ip.Is6() && strings.HasSuffix(before, "://") {
		return "[" + value + "]"
	}
	if strings.HasPrefix(value, "{") {
		switch {
		case strings.Count(before, `"`)%2 == 1:
			return strings.ReplaceAll(value, `"`, `\"`)
		case strings.HasSuffix(strings.TrimSpace(before), ":"): // JSON as it is would be a mapping
			return "'" + strings.ReplaceAll(value, "'", "''") + "'"
		}
		return value
	}
	if !strings.Contains(value, "\n") {
		return value
	}
	value = strings.TrimSuffix(value, "\n")
	switch {
	case before != "" && strings.TrimSpace(before) == "":
		return strings.ReplaceAll(value, "\n", "\n"+before)
	case strings.Count(before, `"`)%2 == 1:
		return strings.ReplaceAll(value, "\n", `\n`) + `\n`
	}
	return `"` + strings.ReplaceAll(value, "\n", `\n`) + `\n"`
}

// replace replaces the variables of a text; write has what stands before one on its line, and its value. A variable
// whose value has errLater stays.
func (v *Values) replace(text string, valueOf func(kind, name string) (string, error), write func(before, value string) string,
) (string, error) {
	var out strings.Builder
	var wrong []error
	end := 0
	for _, at := range variable.FindAllStringSubmatchIndex(text, -1) {
		kind, name := text[at[2]:at[3]], text[at[4]:at[5]]
		value, err := valueOf(kind, name)
		if errors.Is(err, errLater) {
			continue
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", text[at[0]:at[1]], err))
			continue
		}
		out.WriteString(text[end:at[0]])
		end = at[1]
		out.WriteString(write(text[strings.LastIndexByte(text[:at[0]], '\n')+1:at[0]], value))
	}
	out.WriteString(text[end:])
	return out.String(), errors.Join(wrong...)
}

// Expand returns a copy of the scenario whose steps have no variables but those of tokens and keys, which Now replaces
// when a step comes.
func (v *Values) Expand(s *Scenario) (*Scenario, error) {
	e := expansion{values: v, valueOf: v.early}
	clone := *s
	clone.Tokens, _ = e.clone(reflect.ValueOf(s.Tokens)).Interface().(map[string]Token)
	clone.Steps, _ = e.clone(reflect.ValueOf(s.Steps)).Interface().([]Step)
	return &clone, errors.Join(e.wrong...)
}

// Now returns a copy of an expanded step with the tokens and keys of this moment.
func (v *Values) Now(s *Step) (*Step, error) {
	e := expansion{values: v, valueOf: v.late}
	clone, _ := e.clone(reflect.ValueOf(*s)).Interface().(Step)
	return &clone, errors.Join(e.wrong...)
}

type expansion struct {
	values  *Values
	valueOf func(kind, name string) (string, error)
	wrong   []error
}

func (e *expansion) clone(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.String:
		write := inYAML
		if v.Type() == reflect.TypeFor[FileText]() {
			write = asIs
		}
		text, err := e.values.replace(v.String(), e.valueOf, write)
		if err != nil {
			e.wrong = append(e.wrong, err)
		}
		return reflect.ValueOf(text).Convert(v.Type())
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		out := reflect.New(v.Type().Elem())
		out.Elem().Set(e.clone(v.Elem()))
		return out
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		out := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			out.Index(i).Set(e.clone(v.Index(i)))
		}
		return out
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		out := reflect.MakeMapWithSize(v.Type(), v.Len())
		for it := v.MapRange(); it.Next(); {
			out.SetMapIndex(e.clone(it.Key()), e.clone(it.Value()))
		}
		return out
	case reflect.Interface: // a claim
		if v.IsNil() {
			return v
		}
		return e.clone(v.Elem())
	case reflect.Struct:
		out := reflect.New(v.Type()).Elem()
		for i := range v.NumField() {
			out.Field(i).Set(e.clone(v.Field(i)))
		}
		return out
	}
	return v
}
