package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"
)

const (
	metaPrefix     = "ISTIO_META_"
	metaJSONPrefix = "ISTIO_METAJSON_"
)

// environment looks up variables, first in the process environment (vars) and then in ProxyConfig's proxyMetadata
// (extra). failed collects the values that could not be parsed, for Parse's error.
type environment struct {
	vars   map[string]string
	extra  map[string]string
	failed []error
	// asked is Host.Asked.
	asked func(string)
	// machine says that there is a file of variables; see environmentOf.
	machine bool
}

func newEnvironment(h Host) *environment {
	e := &environment{vars: map[string]string{}, asked: h.Asked}
	for _, kv := range h.Environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			e.vars[k] = v
		}
	}
	return e
}

// get returns "" for a variable that is unset or empty.
func (e *environment) get(name string) string {
	if e.asked != nil {
		e.asked(name)
	}
	if v := e.vars[name]; v != "" {
		return v
	}
	return e.extra[name]
}

func (e *environment) or(name, def string) string {
	if v := e.get(name); v != "" {
		return v
	}
	return def
}

func (e *environment) fail(name, value, want string) {
	e.failed = append(e.failed, fmt.Errorf("%s=%q: want %s", name, value, want))
}

// variable parses a variable. It returns def if the variable is unset, empty or malformed; want describes a correct
// value.
func variable[T any](e *environment, name string, def T, want string, parse func(string) (T, error)) T {
	v := e.get(name)
	if v == "" {
		return def
	}
	parsed, err := parse(v)
	if err != nil {
		e.fail(name, v, want)
		return def
	}
	return parsed
}

func (e *environment) boolean(name string, def bool) bool {
	return variable(e, name, def, "true or false", strconv.ParseBool)
}

// optional is nil for a variable that is unset or empty.
func (e *environment) optional(name string) *bool {
	if e.get(name) == "" {
		return nil
	}
	return new(e.boolean(name, false))
}

func (e *environment) duration(name string, def time.Duration) time.Duration {
	return variable(e, name, def, "a duration such as 5s or 24h", time.ParseDuration)
}

// seconds reads a whole number of seconds; ok reports whether the variable has one.
func (e *environment) seconds(name string) (d time.Duration, ok bool) {
	d = variable(e, name, -1, "a whole number of seconds", func(v string) (time.Duration, error) {
		n, err := strconv.ParseUint(v, 10, 31)
		return time.Duration(n) * time.Second, err
	})
	return d, d >= 0
}

func (e *environment) port(name string, def uint16) uint16 {
	return variable(e, name, def, "a port, 1 to 65535", func(v string) (uint16, error) {
		n, err := strconv.ParseUint(v, 10, 16)
		if n == 0 {
			err = strconv.ErrRange
		}
		return uint16(n), err
	})
}

// metadata returns the node metadata in the environment, as Istio's agent reads it. The variable ISTIO_META_X is the
// string of key X. The variable ISTIO_METAJSON_X holds JSON for key X; if that is an object, its entries become keys
// instead. LABELS and ANNOTATIONS are returned separately.
func (e *environment) metadata() (meta map[string]any, labels, annotations map[string]string) {
	meta, labels, annotations = map[string]any{}, map[string]string{}, map[string]string{}
	all := maps.Clone(e.extra)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, e.vars)
	for name, value := range all {
		if key, ok := strings.CutPrefix(name, metaPrefix); ok && key != "" {
			meta[key] = value
		}
	}
	for name, value := range all {
		key, ok := strings.CutPrefix(name, metaJSONPrefix)
		if !ok || key == "" || value == "" {
			continue
		}
		switch key {
		case "LABELS":
			e.stringMap(name, value, labels)
			continue
		case "ANNOTATIONS":
			e.stringMap(name, value, annotations)
			continue
		}
		var parsed any
		if err := json.Unmarshal([]byte(value), &parsed); err != nil {
			e.fail(name, value, "JSON")
			continue
		}
		if object, ok := parsed.(map[string]any); ok {
			maps.Copy(meta, object)
		} else {
			meta[key] = parsed
		}
	}
	return meta, labels, annotations
}

func (e *environment) stringMap(name, value string, into map[string]string) {
	if err := json.Unmarshal([]byte(value), &into); err != nil {
		e.fail(name, value, `a JSON object of strings, as in {"app":"web"}`)
	}
}
