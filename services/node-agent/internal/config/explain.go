package config

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"
)

// layer is a source of settings.
type layer string

// layers are the sources by which "node-agent proxy --print-config" explains a value, the strongest first.
var layers = []layer{fromFlag, fromEnvironment, fromEnvFile, fromAnnotation, fromLabel, fromMetadata, fromProxyConfig, fromMesh}

const (
	fromFlag        layer = "flag"
	fromEnvironment layer = "environment"
	fromEnvFile     layer = "environment file"
	fromAnnotation  layer = "annotation"
	fromLabel       layer = "label"
	fromMetadata    layer = "proxyMetadata"
	fromProxyConfig layer = "ProxyConfig"
	fromMesh        layer = "mesh configuration file"
	fromDefault     layer = "default"
)

// setting is a value and where it comes from.
type setting struct {
	Value any   `json:"value"`
	From  layer `json:"from"`
}

// Explain returns the configuration that Parse makes of the same arguments, as YAML: each value with the source that
// decided it, secrets left out. It works for a configuration that Parse refuses, too; err is Parse's then.
//
// A source decides a value if the value is another one without it. So the configuration is made again without the
// strongest source, without the two strongest, and so on.
func Explain(role string, f Flags, h Host) (text []byte, err error) {
	c, err := assemble(role, f, h)
	if c == nil {
		return nil, err
	}
	now := values(c)
	out := map[string]setting{}
	for name, v := range now {
		out[name] = setting{Value: v, From: fromDefault}
	}
	decided := map[string]bool{}
	for _, l := range layers {
		f, h = without(l, f, h)
		weaker, _ := assemble(role, f, h)
		if weaker == nil {
			continue
		}
		next := values(weaker)
		for name := range out {
			if !decided[name] && !reflect.DeepEqual(now[name], next[name]) {
				out[name], decided[name] = setting{Value: out[name].Value, From: l}, true
			}
		}
	}
	text, errYAML := yaml.Marshal(out)
	if errYAML != nil {
		return nil, errYAML
	}
	return text, err
}

// without takes one source away. The flags that name other sources stay.
func without(l layer, f Flags, h Host) (Flags, Host) {
	missing := func(path string) {
		read := h.ReadFile
		h.ReadFile = func(name string) ([]byte, error) {
			if name == path {
				return nil, fs.ErrNotExist
			}
			return read(name)
		}
	}
	environ := func(keep func(name string) bool) {
		h.Environ = slices.DeleteFunc(slices.Clone(h.Environ), func(kv string) bool {
			name, _, _ := strings.Cut(kv, "=")
			return !keep(name)
		})
	}
	switch l {
	case fromFlag:
		plain := Flags{}
		plain.Register(pflag.NewFlagSet("", pflag.ContinueOnError))
		plain.EnvFile, plain.PodInfoDir, plain.MeshConfig, plain.ResolvConf = f.EnvFile, f.PodInfoDir, f.MeshConfig, f.ResolvConf
		f = plain
	case fromEnvironment:
		environ(func(name string) bool { return name == proxyConfigVariable })
	case fromEnvFile:
		f.EnvFile = ""
	case fromAnnotation:
		missing(filepath.Join(f.PodInfoDir, "annotations"))
	case fromLabel:
		missing(filepath.Join(f.PodInfoDir, "labels"))
	case fromMetadata:
		h.noProxyMetadata = true
	case fromProxyConfig:
		environ(func(string) bool { return false })
	case fromMesh:
		missing(f.MeshConfig)
	case fromDefault:
	}
	return f, h
}

// values are the fields of a configuration by name, as what YAML can express: "concurrency", "drain.envoy",
// "proxyConfig.statusPort".
func values(c *Config) map[string]any {
	out := map[string]any{}
	addFields(out, "", reflect.ValueOf(c).Elem())
	delete(out, "warnings")
	return out
}

// addFields adds the exported fields of a struct.
func addFields(out map[string]any, prefix string, v reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if !field.IsExported() {
			continue
		}
		name := prefix + lowerFirst(field.Name)
		value := v.Field(i)
		if pc, ok := value.Interface().(*meshv1alpha1.ProxyConfig); ok {
			addProxyConfig(out, name, pc)
			continue
		}
		for value.Kind() == reflect.Pointer && !value.IsNil() {
			value = value.Elem()
		}
		own := strings.HasPrefix(value.Type().PkgPath(), "fairlead.dev/")
		if _, isText := value.Interface().(fmt.Stringer); value.Kind() == reflect.Struct && own && !isText {
			addFields(out, name+".", value)
			continue
		}
		out[name] = plain(field.Name, value)
	}
}

func addProxyConfig(out map[string]any, name string, pc *meshv1alpha1.ProxyConfig) {
	js, err := protojson.Marshal(pc)
	var tree map[string]any
	if err == nil {
		err = yaml.Unmarshal(js, &tree)
	}
	if err != nil {
		out[name] = err.Error()
		return
	}
	for field, v := range tree {
		out[name+"."+field] = redact(field, v)
	}
}

// plain turns a value into what YAML can express.
func plain(name string, v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		return nil // it was nil
	case reflect.Slice, reflect.Map:
		if v.IsNil() {
			return nil
		}
	default:
	}
	switch typed := v.Interface().(type) {
	case time.Duration:
		return typed.String()
	case []byte:
		return fmt.Sprintf("%d bytes", len(typed))
	case fmt.Stringer:
		return redact(name, typed.String())
	}
	switch v.Kind() {
	case reflect.Slice:
		out := make([]any, v.Len())
		for i := range out {
			out[i] = plain(name, v.Index(i))
		}
		return out
	case reflect.Map:
		out := map[string]any{}
		for _, key := range v.MapKeys() {
			out[fmt.Sprint(key)] = redact(fmt.Sprint(key), v.MapIndex(key).Interface())
		}
		return out
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32,
		reflect.Uint64, reflect.Float64:
		return redact(name, v.Interface())
	default:
		return redact(name, fmt.Sprintf("%+v", v.Interface()))
	}
}

// secretName matches names of settings whose values nobody shall read in a log or a terminal.
var secretName = regexp.MustCompile(`(?i)passw|access_?token|api_?key|secret_?key|client_?secret|private_?key$|(^|_)(token|secret)$`)

const redacted = "[redacted]"

// redact replaces a secret, in nested values too.
func redact(name string, v any) any {
	if secretName.MatchString(name) {
		return redacted
	}
	switch typed := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, each := range typed {
			out[k] = redact(k, each)
		}
		return out
	case []any:
		out := make([]any, len(typed))
		for i, each := range typed {
			out[i] = redact(name, each)
		}
		return out
	}
	return v
}

// lowerFirst writes a name as ProxyConfig does: "stateDir", "caAddress".
func lowerFirst(name string) string {
	for _, acronym := range []string{"CA", "DNS", "GRPC"} {
		if rest, ok := strings.CutPrefix(name, acronym); ok {
			return strings.ToLower(acronym) + rest
		}
	}
	return strings.ToLower(name[:1]) + name[1:]
}
