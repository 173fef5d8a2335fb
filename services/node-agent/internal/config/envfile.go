package config

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

const (
	// maxEnvFile bounds a file of variables, in bytes.
	maxEnvFile = 1 << 20
	// customRules is the variable of Istio's start script by which a machine's owner keeps rules of his own.
	customRules = "ISTIO_CUSTOM_IP_TABLES"
	// proxyUser is the user that Istio's package runs the proxy as, if ENVOY_USER names no other.
	proxyUser = "istio-proxy"
)

// environmentOf is the environment of the process, on top of the variables of a machine's file, "" for none. With a
// file, what Istio's start script derives for its agent is derived, too, unless it is set: INSTANCE_IP from
// ISTIO_SVC_IP, POD_NAMESPACE from ISTIO_NAMESPACE, POD_NAME from the host's name.
func environmentOf(file string, h Host) (*environment, error) {
	if file == "" {
		return newEnvironment(h), nil
	}
	data, err := h.ReadFile(file)
	if err == nil && len(data) > maxEnvFile {
		err = fmt.Errorf("%s is %d bytes: at most %d are read", file, len(data), maxEnvFile)
	}
	if err != nil {
		return nil, fmt.Errorf("--env-file: %w", err)
	}
	assignments, err := parseEnvFile(file, string(data))
	if err != nil {
		return nil, fmt.Errorf("--env-file: %w", err)
	}
	h.Environ = append(assignments, h.Environ...)
	env := newEnvironment(h)
	env.machine = true
	vars := env.vars
	vars["INSTANCE_IP"] = cmp.Or(vars["INSTANCE_IP"], vars["ISTIO_SVC_IP"])
	vars["POD_NAMESPACE"] = cmp.Or(vars["POD_NAMESPACE"], vars["ISTIO_NAMESPACE"])
	if vars["POD_NAME"] == "" && h.Hostname != nil {
		name, err := h.Hostname()
		if err != nil {
			return nil, fmt.Errorf("this host has no name (%w): set POD_NAME", err)
		}
		vars["POD_NAME"], _, _ = strings.Cut(name, ".")
	}
	return env, nil
}

// controlPlane is the control plane's address on a machine where the ProxyConfig names none: Istio's, which the file
// hosts of the machine names. "" without a file of variables.
func (e *environment) controlPlane() string {
	if !e.machine {
		return ""
	}
	host := "istiod." + cmp.Or(e.vars["ISTIO_SYSTEM_NAMESPACE"], "istio-system") + ".svc"
	return cmp.Or(e.vars["PILOT_ADDRESS"], host+":"+cmp.Or(e.vars["ISTIO_PILOT_PORT"], "15012"))
}

// parseEnvFile reads assignments as a POSIX shell does that reads the file with ".": one a line, as in
//
//	export NAME='a value with '"'"' in it'
//
// with single and double quotes, backslashes, comments, and values over several lines. It returns them as NAME=value,
// in the order of the file. Whatever would make a shell expand or run something is an error, which names file, line and
// remedy, and never the value.
func parseEnvFile(file, text string) ([]string, error) {
	p := &envParser{text: text, line: 1}
	var out []string
	for {
		assignment, err := p.next()
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, p.line, err)
		}
		if assignment == "" {
			return out, nil
		}
		out = append(out, assignment)
	}
}

// envParser reads text from at on; line is the line of at, or of what an error is about.
type envParser struct {
	text     string
	at, line int
}

// peek is the next byte, 0 at the end of the text.
func (p *envParser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *envParser) take() byte {
	c := p.peek()
	p.at++
	if c == '\n' {
		p.line++
	}
	return c
}

func (p *envParser) blanks() {
	for c := p.peek(); c == ' ' || c == '\t' || c == '\r' && strings.HasPrefix(p.text[p.at:], "\r\n"); c = p.peek() {
		p.take()
	}
}

// next is the next assignment, "" at the end.
func (p *envParser) next() (string, error) {
	if strings.IndexByte(p.text, 0) >= 0 {
		return "", errors.New("the file has a zero byte: want text")
	}
	for {
		p.blanks()
		switch {
		case p.at >= len(p.text):
			return "", nil
		case p.peek() == '#':
			p.comment()
			continue
		case p.peek() == '\n':
			p.take()
			continue
		}
		break
	}
	if rest := p.text[p.at:]; strings.HasPrefix(rest, "export ") || strings.HasPrefix(rest, "export\t") {
		p.at += len("export")
		p.blanks()
	}
	begin := p.at
	for c := p.peek(); isNameByte(c); c = p.peek() {
		p.at++
	}
	name := p.text[begin:p.at]
	if name == "" || name[0] >= '0' && name[0] <= '9' || p.peek() != '=' {
		return "", errors.New("want NAME='value': a name of letters, digits and _, and = without spaces around it")
	}
	p.at++
	value, err := p.value()
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	p.blanks()
	if p.peek() == '#' {
		p.comment()
	}
	if p.at < len(p.text) && p.peek() != '\n' {
		return "", fmt.Errorf("%s: there is more on the line after the value: write the value in single quotes", name)
	}
	return name + "=" + value, nil
}

func (p *envParser) comment() {
	for p.at < len(p.text) && p.peek() != '\n' {
		p.at++
	}
}

func isNameByte(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// value reads the parts of a value, quoted and not, up to a blank or the end of the line.
func (p *envParser) value() (string, error) {
	var out strings.Builder
	for p.at < len(p.text) {
		switch c := p.peek(); {
		case c == '\n' || c == ' ' || c == '\t' || c == '\r' && strings.HasPrefix(p.text[p.at:], "\r\n"):
			return out.String(), nil
		case c == '\'' || c == '"':
			if err := p.quoted(&out); err != nil {
				return "", err
			}
		case c == '\\':
			p.take()
			switch c := p.take(); c {
			case 0:
				return "", errors.New(`\ ends the file: write the value in single quotes`)
			case '\n': // the line goes on
			default:
				out.WriteByte(c)
			}
		case c == '~' && out.Len() == 0, strings.IndexByte("$`;&|<>()", c) >= 0:
			return "", fmt.Errorf("a shell would not take %q as it is, and nothing is expanded or run here: write the value in single quotes", c)
		default:
			out.WriteByte(p.take())
		}
	}
	return out.String(), nil
}

// quoted reads a part in quotes. An error is about the line where it begins.
func (p *envParser) quoted(out *strings.Builder) error {
	begin, quote := p.line, p.take()
	for p.at < len(p.text) {
		switch c := p.take(); {
		case c == quote:
			return nil
		case quote == '"' && (c == '$' || c == '`'):
			return fmt.Errorf("nothing is expanded or run here: write %q as \\%c, or the value in single quotes", c, c)
		case quote == '"' && c == '\\' && p.at < len(p.text) && strings.IndexByte("$`\"\\\n", p.peek()) >= 0:
			if c = p.take(); c != '\n' {
				out.WriteByte(c)
			}
		default:
			out.WriteByte(c)
		}
	}
	p.line = begin
	return fmt.Errorf("the quote %c is not closed", quote)
}
