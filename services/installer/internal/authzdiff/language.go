package authzdiff

import (
	"encoding/binary"
	"regexp/syntax"
	"slices"
	"strings"

	"fairlead.dev/pkg/authz"
)

// maxStates bounds the states of the automaton of one attribute.
const maxStates = 50_000

// language is what one matcher matches. A cut one compares a path without its query and fragment.
type language struct {
	match authz.StringMatch
	cut   bool
}

// samples returns texts of a domain, a regular expression, so that for every text of the domain one of them meets the
// same languages. complete is false if there are more of them than could be found.
//
// The languages run as one automaton: a state is the set of places that the expressions of all of them have reached,
// and texts that lead into one state are alike. The shortest text into each state with another answer is taken.
func (b *builder) samples(domain string, languages []language) (texts []string, complete bool) {
	a, err := newAutomaton(domain, languages)
	if err != nil {
		return nil, false
	}
	type item struct {
		state []uint32
		text  string
	}
	start := a.start()
	queue := []item{{start, ""}}
	seen := map[string]bool{key(start): true}
	answers := map[string]bool{}
	for len(queue) > 0 {
		if b.ended() {
			return texts, false
		}
		at := queue[0]
		queue = queue[1:]
		if inside, answer := a.answer(at.state); inside && !answers[answer] {
			answers[answer] = true
			texts = append(texts, at.text)
		}
		for _, r := range a.alphabet {
			next := a.step(at.state, r)
			if len(next) == 0 {
				continue
			}
			k := key(next)
			if seen[k] {
				continue
			}
			if len(seen) >= maxStates {
				return texts, false
			}
			seen[k] = true
			queue = append(queue, item{next, at.text + string(r)})
		}
	}
	return texts, true
}

// automaton runs expressions side by side. A place is the number of an instruction, counted through all programs; that
// after a program's last means that a cut language has matched what was before the query.
type automaton struct {
	programs []program
	// places says for each place which program it is of.
	places   []int
	alphabet []rune
}

type program struct {
	*syntax.Prog
	first uint32
	cut   bool
}

func newAutomaton(domain string, languages []language) (*automaton, error) {
	a := &automaton{}
	add := func(text string, cut bool) error {
		re, err := syntax.Parse(text, syntax.Perl&^syntax.UnicodeGroups)
		if err != nil {
			return err
		}
		prog, err := syntax.Compile(re.Simplify())
		if err != nil {
			return err
		}
		first := len(a.places)
		for range len(prog.Inst) + 1 {
			a.places = append(a.places, len(a.programs))
		}
		a.programs = append(a.programs, program{prog, uint32(first), cut}) //nolint:gosec // policies are bounded
		return nil
	}
	if err := add(domain, false); err != nil {
		return nil, err
	}
	for _, l := range languages {
		if err := add(expression(l.match), l.cut); err != nil {
			return nil, err
		}
	}
	a.alphabet = a.letters()
	return a, nil
}

// expression is the regular expression that matches as m does, the whole string.
func expression(m authz.StringMatch) string {
	const anything = "(?s:.*)"
	quoted := func() string {
		if !m.IgnoreCase {
			return quote(m.Text)
		}
		return "(?i:" + quote(m.Text) + ")"
	}
	switch m.Kind {
	case authz.Exact:
		return quoted()
	case authz.Prefix:
		return quoted() + anything
	case authz.Suffix:
		return anything + quoted()
	case authz.Contains:
		return anything + quoted() + anything
	case authz.Regex:
		return m.Text
	case authz.NotEmpty:
		return "(?s:.+)"
	default:
		return anything
	}
}

// quote quotes a text for an expression. regexp.QuoteMeta leaves invalid UTF-8, which no expression may have.
func quote(text string) string {
	var out strings.Builder
	for _, r := range text {
		if strings.ContainsRune(`\.+*?()|[]{}^$`, r) {
			out.WriteByte('\\')
		}
		out.WriteRune(r)
	}
	return out.String()
}

// nice are characters in the order in which they are preferred.
const nice = "xabcdefghijklmnopqrstuvwyz0123456789-/.ABCDEFGHIJKLMNOPQRSTUVWXYZ_:@,~?# "

// letters returns a character of each class that no instruction tells apart.
func (a *automaton) letters() []rune {
	candidates := []rune(nice)
	var reading []*syntax.Inst
	known := map[string]bool{}
	cut := false
	for _, p := range a.programs {
		cut = cut || p.cut
		for i := range p.Inst {
			in := &p.Inst[i]
			switch in.Op {
			case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			default:
				continue
			}
			if k := string(rune(in.Op)) + string(rune(in.Arg)) + string(in.Rune); !known[k] {
				known[k] = true
				reading = append(reading, in)
				for _, r := range in.Rune {
					for _, near := range []rune{r, r - 1, r + 1} {
						if near >= ' ' && near <= '\U0010FFFF' && (near < 0xD800 || near > 0xDFFF) && near != 0x7f {
							candidates = append(candidates, near)
						}
					}
				}
			}
		}
	}
	classes := map[string]bool{}
	var out []rune
	for _, r := range candidates {
		class := make([]byte, len(reading)/8+1)
		for i, in := range reading {
			if in.MatchRune(r) {
				class[i/8] |= 1 << (i % 8)
			}
		}
		if cut && (r == '?' || r == '#') {
			class = append(class, byte(r))
		}
		if !classes[string(class)] {
			classes[string(class)] = true
			out = append(out, r)
		}
	}
	return out
}

func (a *automaton) start() []uint32 {
	var out []uint32
	for _, p := range a.programs {
		out = a.reach(out, p, uint32(p.Start)) //nolint:gosec // not negative
	}
	return sorted(out)
}

// reach adds the places that are reached from an instruction without reading.
func (a *automaton) reach(out []uint32, p program, pc uint32) []uint32 {
	in := &p.Inst[pc]
	switch in.Op {
	case syntax.InstAlt, syntax.InstAltMatch:
		return a.reach(a.reach(out, p, in.Out), p, in.Arg)
	case syntax.InstCapture, syntax.InstNop, syntax.InstEmptyWidth:
		return a.reach(out, p, in.Out)
	case syntax.InstFail:
		return out
	default:
		if place := p.first + pc; !slices.Contains(out, place) {
			out = append(out, place)
		}
		return out
	}
}

// step returns the state after a character; none if no text of the domain goes on so.
func (a *automaton) step(state []uint32, r rune) []uint32 {
	var out []uint32
	query := r == '?' || r == '#'
	for _, place := range state {
		p := a.programs[a.places[place]]
		pc := place - p.first
		switch {
		case int(pc) == len(p.Inst):
			out = append(out, place)
		case p.cut && query:
			if p.Inst[pc].Op == syntax.InstMatch {
				out = append(out, p.first+uint32(len(p.Inst))) //nolint:gosec // policies are bounded
			}
		case p.Inst[pc].Op != syntax.InstMatch && p.Inst[pc].MatchRune(r):
			out = a.reach(out, p, p.Inst[pc].Out)
		}
	}
	if out = sorted(out); len(out) == 0 || a.places[out[0]] != 0 {
		return nil
	}
	return out
}

// answer says whether a state's texts are of the domain, and which languages they meet.
func (a *automaton) answer(state []uint32) (inside bool, met string) {
	var out []byte
	for _, place := range state {
		i := a.places[place]
		p := a.programs[i]
		pc := int(place - p.first)
		if pc < len(p.Inst) && p.Inst[pc].Op != syntax.InstMatch {
			continue
		}
		if i == 0 {
			inside = true
			continue
		}
		out = binary.AppendUvarint(out, uint64(i)) //nolint:gosec // not negative
	}
	return inside, string(out)
}

func sorted(state []uint32) []uint32 {
	slices.Sort(state)
	return slices.Compact(state)
}

func key(state []uint32) string {
	var out []byte
	last := uint32(0)
	for _, place := range state {
		out = binary.AppendUvarint(out, uint64(place-last))
		last = place
	}
	return string(out)
}
