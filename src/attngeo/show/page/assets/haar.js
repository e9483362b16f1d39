// Rebuilding the attention of a head from the packed Haar coefficients of all heads.
//
// A tree has n − 1 rotations (first, second, cosine) of the inverse transform: in order, each turns the values u and v
// of two basis columns into cu + sv and cv − su. Element i of the result is then value source[i].

/** Add sines, and the forward transform of one element: the row of the Haar basis that belongs to it. */
function preparedTree(tree) {
  const sine = Float64Array.from(tree.cosine, (c) => Math.sqrt(Math.max(0, 1 - c * c)));
  return { ...tree, sine, size: tree.source.length };
}

/** Return the value of every basis column at one element, [n]. */
function basisRow(tree, item) {
  const row = new Float64Array(tree.size);
  row[tree.source[item]] = 1;
  for (let k = tree.first.length - 1; k >= 0; k--) {
    const u = row[tree.first[k]], v = row[tree.second[k]], c = tree.cosine[k], s = tree.sine[k];
    row[tree.first[k]] = c * u - s * v;
    row[tree.second[k]] = s * u + c * v;
  }
  return row;
}

/** Apply the inverse transform along the rows of values [rows, columns]; return a new array. */
function inverseAlongRows(tree, values, columns) {
  for (let k = 0; k < tree.first.length; k++) {
    const a = tree.first[k] * columns, b = tree.second[k] * columns, c = tree.cosine[k], s = tree.sine[k];
    for (let x = 0; x < columns; x++) {
      const u = values[a + x], v = values[b + x];
      values[a + x] = c * u + s * v;
      values[b + x] = c * v - s * u;
    }
  }
  const result = new Float32Array(values.length);
  tree.source.forEach((from, row) => result.set(values.subarray(from * columns, (from + 1) * columns), row * columns));
  return result;
}

/** Return values [rows, columns] as [columns, rows]. */
function transposed(values, rows, columns) {
  const result = new Float32Array(values.length);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) result[j * rows + i] = values[i * columns + j];
  return result;
}

/** The coefficients of a network: `positions` and signed `levels`, those of head column j at starts[j] … starts[j + 1]. */
class Coefficients {
  /** Decode the bytes that page/attention.py describes. */
  constructor(data, bytes) {
    const total = data.columns.reduce((sum, count) => sum + count, 0);
    const number = (plane, count, n) => {
      let value = 0;
      for (let k = plane + count - 1; k >= plane; k--) value = 256 * value + bytes[k * total + n];
      return value;
    };
    this.positions = new Uint32Array(total);
    this.levels = new Int16Array(total);
    this.starts = new Uint32Array(data.columns.length + 1);
    let n = 0;
    data.columns.forEach((count, column) => {
      let position = -1;
      for (const end = n + count; n < end; n++) this.positions[n] = position += number(0, 4, n) + 1;
      this.starts[column + 1] = n;
    });
    for (let i = 0; i < total; i++) {
      const code = number(4, 2, i);
      this.levels[i] = code & 1 ? -(code >> 1) : code >> 1;
    }
  }
}

/** The network of one page: rebuilds heads. */
class Network {
  static async open(data) {
    return new Network(data, new Coefficients(data, await inflate(data.packed)));
  }

  constructor(data, coefficients) {
    this.data = data;
    this.coefficients = coefficients;
    this.trees = data.trees.map(preparedTree);
  }

  /** Return the attention [queries · keys] of head number `head`, from the coefficients that a stop shows. */
  head(head, stop) {
    const [queries, keys] = this.data.shape;
    const { positions, levels, starts } = this.coefficients;
    const least = this.data.stops[stop];
    const along = basisRow(this.trees[2], head);
    const sums = new Float32Array(queries * keys); // coefficients of this head along queries and keys
    for (let column = 0; column < along.length; column++) {
      const factor = along[column] * this.data.step;
      if (factor === 0) continue; // the column lies outside the head's path in the tree
      for (let i = starts[column]; i < starts[column + 1]; i++) {
        const level = levels[i];
        if (level >= least) sums[positions[i]] += factor * (level + 0.5);
        else if (level <= -least) sums[positions[i]] += factor * (level - 0.5);
      }
    }
    const byKey = transposed(inverseAlongRows(this.trees[0], sums, keys), queries, keys);
    const values = transposed(inverseAlongRows(this.trees[1], byKey, queries), keys, queries);
    const norm = this.data.norms[head];
    for (let i = 0; i < values.length; i++) values[i] *= norm;
    return values;
  }
}
