// Package nearest suggests names for errors: Name finds the known name that a misspelt one most likely means, Hint puts
// it into a question.
package nearest

import (
	"strconv"
	"strings"
)

// Name returns the candidate nearest to word, empty if none is near. Case does not count. Of several that are equally
// near, one with the same first letter is chosen, else the first.
func Name(word string, candidates []string) string {
	best, bestDistance := "", len(word)/3+1
	if bestDistance > 3 {
		bestDistance = 3
	}
	for _, cand := range candidates {
		if strings.EqualFold(cand, word) {
			return cand
		}
		if len(cand)-len(word) > bestDistance || len(word)-len(cand) > bestDistance {
			continue
		}
		d := distance(strings.ToLower(word), strings.ToLower(cand))
		if d < bestDistance || d == bestDistance && (best == "" || sameStart(word, cand) && !sameStart(word, best)) {
			best, bestDistance = cand, d
		}
	}
	return best
}

// sameStart reports whether two words have the same first letter.
func sameStart(a, b string) bool { return a != "" && b != "" && strings.EqualFold(a[:1], b[:1]) }

// Hint returns "; did you mean \"x\"?" for the end of an error; empty if no candidate is near.
func Hint(word string, candidates []string) string {
	name := Name(word, candidates)
	if name == "" {
		return ""
	}
	return "; did you mean " + strconv.Quote(name) + "?"
}

// longest is the longest word that is compared, because the work grows with the product of the lengths.
const longest = 128

// distance is the edit distance with transpositions (optimal string alignment).
func distance(a, b string) int {
	if len(a) > longest || len(b) > longest {
		return longest
	}
	prev2 := make([]int, len(b)+1)
	prev := make([]int, len(b)+1)
	cur := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
