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

var variable = regexp.MustCompile(`\$\{([a-z0-9]+):([^}]*)\}`)

// Values says what ${kind:name} stands for.
type Values struct {
	Certificates map[string]*Material
	// IP is a workload's address, VIP a Service's (by SERVICE.NAMESPACE), Identity a workload's SPIFFE URI, Files where
	// its files are.
	IP, VIP, Identity, Files func(name string) (string, error)
}

var errVariable = errors.New("use ip, vip, identity, files, cert, key, chain or crl, with 64 after it for base64")

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
// quotes of its own.
func (v *Values) Text(text string) (string, error) {
	return v.replace(text, inYAML)
}

// File replaces the variables of a file's content.
func (v *Values) File(text string) (string, error) {
	return v.replace(text, func(_, value string) string { return value })
}

// inYAML writes a value as the text of YAML before it demands. An IPv6 address that begins the authority of a URL gets
// its brackets.
func inYAML(before, value string) string {
	if ip, err := netip.ParseAddr(value); err == nil && ip.Is6() && strings.HasSuffix(before, "://") {
		return "[" + value + "]"
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

// replace replaces the variables of a text; write has what stands before one on its line, and its value.
func (v *Values) replace(text string, write func(before, value string) string) (string, error) {
	var out strings.Builder
	var wrong []error
	end := 0
	for _, at := range variable.FindAllStringSubmatchIndex(text, -1) {
		kind, name := text[at[2]:at[3]], text[at[4]:at[5]]
		value, err := v.value(kind, name)
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

// Expand returns a copy of the scenario whose steps have no variables.
func (v *Values) Expand(s *Scenario) (*Scenario, error) {
	e := expansion{values: v}
	clone := *s
	clone.Steps, _ = e.clone(reflect.ValueOf(s.Steps)).Interface().([]Step)
	return &clone, errors.Join(e.wrong...)
}

type expansion struct {
	values *Values
	wrong  []error
}

func (e *expansion) clone(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.String:
		replace := e.values.Text
		if v.Type() == reflect.TypeFor[FileText]() {
			replace = e.values.File
		}
		text, err := replace(v.String())
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
	case reflect.Struct:
		out := reflect.New(v.Type()).Elem()
		for i := range v.NumField() {
			out.Field(i).Set(e.clone(v.Field(i)))
		}
		return out
	}
	return v
}
